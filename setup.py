"""Compiles ``sottovoce.kernels.core`` with Cython: plain Python modules with C types in .pxd files.

The modules are joined into one, which is compiled once for any processor
(``sottovoce.kernels._baseline``) and, on x86-64, once more for AVX2 (``sottovoce.kernels._avx2``).
``sottovoce.kernels`` picks one at run time, or the plain modules where there is neither: a missing
C compiler or Python header fails no build.
"""

import ast
import hashlib
import platform
import re
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCE = Path("src/sottovoce/kernels/core")
STAGE = Path("build/kernels")
JOBS = 2

MSVC = sys.platform == "win32"
# The same bits everywhere: no fused multiply-add, nothing reordered. Leaving errno and traps out
# changes no number and lets comparisons become vector code.
FLAGS = (
    ["/O2", "/fp:precise"]
    if MSVC
    else ["-O3", "-g0", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
)
# GCC unrolls loops over 16 lanes completely before it looks for vectors, and then finds none; it
# joins the loops of two components, and then gathers what lies in rows; and it threads the two
# comparisons of a clip into one jump, in which it finds no minimum and no maximum.
GCC_FLAGS = [
    "--param=max-completely-peel-times=8", "-fno-loop-unroll-and-jam", "-fno-thread-jumps"
]  # fmt: skip
VARIANTS = {"_baseline": []}
if platform.machine().lower() in ("x86_64", "amd64"):
    VARIANTS["_avx2"] = ["/arch:AVX2"] if MSVC else ["-mavx2"]
DIRECTIVES = {
    "language_level": 3,
    "infer_types": True,
    "cdivision": True,
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "freethreading_compatible": True,
}


def extensions():
    """One optional extension per variant."""
    return [
        Extension(
            f"sottovoce.kernels.{variant}.core",
            [str(SOURCE / "__init__.py")],
            extra_compile_args=[*FLAGS, *flags],
            optional=True,
        )
        for variant, flags in VARIANTS.items()
    ]


class BuildKernels(build_ext):
    """Translates and compiles the kernels; without a compiler it builds nothing and says so."""

    def finalize_options(self):
        """Use two cores unless told otherwise."""
        super().finalize_options()
        self.parallel = self.parallel or JOBS

    def build_extensions(self):
        """Translate what changed, compile, and accept that there may be no compiler."""
        if not self._compiles():
            self.warn("no C compiler or no Python header: sottovoce's kernels stay plain Python")
            self.extensions = []
            return
        from Cython.Build import cythonize

        extra = GCC_FLAGS if not MSVC and self._compiles(*GCC_FLAGS, "-Werror") else []
        for extension in self.extensions:
            extension.sources = [str(joined(extension.name.split(".")[-2]))]
            extension.extra_compile_args += extra
        translated = cythonize(
            self.extensions,
            include_path=[str(STAGE / variant) for variant in VARIANTS],
            compiler_directives=DIRECTIVES,
            nthreads=JOBS,
            quiet=True,
        )
        sources = {extension.name: extension.sources for extension in translated}
        for extension in self.extensions:
            extension.sources = sources[extension.name]
        super().build_extensions()

    def copy_extensions_to_source(self):
        """Put them where an editable installation finds them."""
        for extension in self.extensions:
            folder = SOURCE.parent / extension.name.split(".")[-2]
            folder.mkdir(exist_ok=True)
        super().copy_extensions_to_source()

    def _compiles(self, *flags):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "trial.c")
            file.write_text("#include <Python.h>\nint sottovoce_trial(void) { return 0; }\n")
            try:
                # The whole path, as a compiler puts objects where its sources are.
                self.compiler.compile(
                    [str(file)],
                    output_dir=folder,
                    include_dirs=self.include_dirs,
                    extra_postargs=list(flags),
                )
            except Exception:  # whatever a missing or unfit compiler raises
                return False
        return True


def joined(variant):
    """Write all kernels as one module in the package of a variant, if anything changed."""
    root = STAGE / variant
    folder = root / "sottovoce" / "kernels" / variant
    folder.mkdir(parents=True, exist_ok=True)
    for package in (folder, *folder.parents[: len(folder.relative_to(root).parts) - 1]):
        (package / "__init__.py").touch()
    (listed,) = ast.parse((SOURCE / "__init__.py").read_text()).body[1:]
    names = ast.literal_eval(listed.value)
    types = "\n".join(
        ["cimport cython\n", *((SOURCE / f"{name}.pxd").read_text() for name in names)]
    )
    structs = re.findall(r"^cdef struct (\w+):\n((?:    .*\n)+)", types, re.MULTILINE)
    fillers = [f"cdef object {filler_name(s)}({s}* to, dict values)\n" for s, _ in structs]
    digest = hashlib.sha256(b"".join((SOURCE / f"{name}.py").read_bytes() for name in names))
    texts = {
        "core.pxd": [types, *fillers],
        "core.py": [
            f'import cython\n\nSOURCES = "{digest.hexdigest()}"\n',
            *map(without_imports, names[1:]),
            *map(filler, structs),
        ],
    }
    for name, parts in texts.items():
        text = "\n".join(parts)
        if not (folder / name).exists() or (folder / name).read_text() != text:
            (folder / name).write_text(text)
    return folder / "core.py"


def without_imports(name):
    """A module's text without its imports of other kernels, which the joined module holds."""
    text = (SOURCE / f"{name}.py").read_text()
    lines = text.splitlines(keepends=True)
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom):
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return "".join(lines)


def filler_name(struct):
    """Its name: ``fill_run_view`` of RunView."""
    return "fill" + re.sub("([A-Z])", r"_\1", struct).lower()


def filler(struct):
    """The function that sets a struct's numbers and pointers from a dictionary, by name."""
    name, fields = struct
    pointers = {"double*": "doubles", "int32_t*": "ints", "int64_t*": "longs", "uint64_t*": "words"}
    numbers = ("int", "bint", "double", "Py_ssize_t", "uint64_t")
    lines = [f'def {filler_name(name)}(to, values):\n    """Set fields of a struct."""\n']
    for kind, field in re.findall(r"^    (\S+) (\w+)", fields, re.MULTILINE):
        value = f'values["{field}"]'
        if kind == "TapeView":
            sets = f"point_to_tape(cython.address(to.{field}), {value})"
        elif kind in pointers or kind in numbers:
            sets = f"to.{field} = {pointers.get(kind, '')}({value})"
        else:
            continue
        lines.append(f'    if "{field}" in values:\n        {sets}\n')
    return "".join(lines)


setup(cmdclass={"build_ext": BuildKernels}, ext_modules=extensions())
