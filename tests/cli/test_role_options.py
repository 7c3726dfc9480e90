"""Options of a role come from the command line, else the environment, else a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from sottovoce.cli import main

PAPER = Path(__file__).parents[2] / "examples" / "paper"


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> object:
    """What a relay says of options that it refuses."""

    def run(*words: object) -> str:
        relay = ["sottovoce", "relay", PAPER, "--agents", "1-2", "--cloud", "wss://h:1", *words]
        monkeypatch.setattr("sys.argv", [str(word) for word in relay])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        return capsys.readouterr().err

    return run


def test_the_command_line_comes_first_then_the_environment_then_the_file(
    refused: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(refused)
    file = tmp_path / "relay.toml"
    file.write_text('listen = "of-the-file"\nkeys = "nowhere"\nlog-level = "error"\n')
    assert "of-the-file" in refused("--config", file)
    monkeypatch.setenv("SOTTOVOCE_CONFIG", str(file))
    assert "of-the-file" in refused()
    monkeypatch.setenv("SOTTOVOCE_LISTEN", "of-the-environment")
    assert "of-the-environment" in refused()
    assert "of-the-command" in refused("--listen", "of-the-command")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("strict = true\n", "got 'strict': known are agents, cloud, config"),
        ("listen = \n", "--config must be TOML"),
        (None, "--config must be a readable file"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(
    refused: object, tmp_path: Path, text: str | None, named: str
) -> None:
    assert callable(refused)
    file = tmp_path / "relay.toml"
    if text is not None:
        file.write_text(text)
    assert named in " ".join(refused("--config", file).split())
