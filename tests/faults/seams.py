"""Where faults are injected: the few places that a redesign has to find again.

A seam is a function, a method or a class by its path; whatever else a fault needs to know of the
package it takes from arguments and results.
"""

from __future__ import annotations

from typing import Final

SEAMS: Final = {
    # noise
    "source of draws": "sottovoce.privacy.sampler._discrete_gaussian",
    "draws of the pool": "sottovoce.privacy.sampler._Pool.take",
    "process of the pool": "sottovoce.privacy.sampler._process",
    "secure release": "sottovoce.privacy.sampler.SecureSampler.release",
    "secure release of residues": "sottovoce.privacy.sampler.SecureSampler.release_modular",
    "noise drawn ahead": "sottovoce.privacy.sampler.SecureSampler.refill",
    "copy of a sampler": "sottovoce.privacy.sampler.SecureSampler.__reduce__",
    "deployed sampler": "sottovoce.network.round_arithmetic.deployed_sampler",
    "sigma of a release": "sottovoce.network.round_arithmetic.noisy_sigma",
    # accounting
    "delta of mu": "sottovoce.privacy.gaussian.delta_of",
    "epsilon of mu": "sottovoce.privacy.gaussian.epsilon_of",
    "mu of a promise": "sottovoce.privacy.gaussian.gdp_mu_of",
    "the paper's kappa": "sottovoce.privacy.gaussian.kappa",
    "allowance for rounding": "sottovoce.privacy.sampler.rounding_allowance",
    "share of rounding": "sottovoce.privacy.allocation.rounding_shift",
    "mu that is spent": "sottovoce.privacy.allocation.spent_gdp_mu",
    "allocation": "sottovoce.privacy.allocation.allocate",
    "reach of a pair": "sottovoce.privacy.plan.sequence_radii",
    "radii": "sottovoce.privacy.adjacency.radii",
    "final check of a plan": "sottovoce.privacy.plan._require_promise",
    "check of a plan's size": "sottovoce.privacy.plan.require_releasable",
    "the paper's noise": "sottovoce.paper.paper_plan.paper_noise",
    "check of the paper's mechanisms": "sottovoce.paper.paper_plan.each_mechanism_keeps",
    "guarantee": "sottovoce.privacy.noise_plan.NoisePlan.guarantee",
    "figures rounded up": "sottovoce.privacy.statement.up",
    # margins
    "margins": "sottovoce.privacy.margins.feasibility",
    "box within ranges": "sottovoce.privacy.feasibility.boxes_within",
    "region around a box": "sottovoce.privacy.feasibility.region_contains",
    "proof of convexity": "sottovoce.privacy.margins.require_proven_convexity",
    "test of an answer": "sottovoce.privacy.feasibility.Feasibility.confirmed",
    "test at the end": "sottovoce.network.round_arithmetic.AnswerTest.__call__",
    # ledger
    "units of mu": "sottovoce.privacy.charge.units_up",
    "charge in units": "sottovoce.privacy.charge._units",
    "amount of a charge": "sottovoce.privacy.charge.amount",
    "charges by agent": "sottovoce.privacy.ledger._charge_by_agent",
    "spend": "sottovoce.privacy.ledger.Ledger.spend",
    "ledger's connection": "sottovoce.privacy.fence.connect",
    "fence at start": "sottovoce.privacy.fence.require_fence",
    "fence that rises": "sottovoce.privacy.fence.Fence.rise",
    # store
    "store's connection": "sottovoce.network.journal.Journal._connect",
    "checkpoint of a new store": "sottovoce.network.journal_file.JournalFile.settle",
    "lease": "sottovoce.network.journal_schema.JournalSchema.hold",
    "commit": "sottovoce.network.store.CloudStore.commit",
    "mark": "sottovoce.network.journal_file.Marker.write",
    "seal": "sottovoce.network.journal_file.seal",
    # rounds of the cloud
    "order of a release": "sottovoce.network.runner.make_durable",
    "played round": "sottovoce.network.round_arithmetic.Rounds.play",
    "totals": "sottovoce.network.protocol.collected.ContributionTotals.__call__",
    "cloud's step": "sottovoce.network.round_arithmetic.PriceState.take",
    "resumed run": "sottovoce.network.store.resumed",
    "configuration": "sottovoce.network.setup.make_config",
    "check of a request": "sottovoce.network.setup.check_request",
    "check of a store": "sottovoce.network.store.check_store",
    # protocol
    "ranges of parties": "sottovoce.network.setup.ranges_of",
    "fallbacks": "sottovoce.network.setup.Fallbacks.__call__",
    "range of a party": "sottovoce.network.setup.Ranges.of",
    "clip": "sottovoce.network.protocol.codec.Box.nearest",
    "collected part": "sottovoce.network.protocol.collected.Collected.put",
    "forgotten part": "sottovoce.network.protocol.collected.Collected._forget",
    "cloud machine": "sottovoce.network.protocol.cloud_machine.CloudMachine.__init__",
    "message of a round": "sottovoce.network.protocol.cloud_machine.CloudMachine._message",
    "accepted part": "sottovoce.network.protocol.cloud_machine.CloudMachine._accept",
    "deadline": "sottovoce.network.protocol.cloud_machine.CloudMachine.deadline",
    "agent's step": "sottovoce.network.protocol.agent_machine.AgentMachine._round",
    "receipts of a relay": "sottovoce.network.protocol.receipt.PassedReceipts.digest",
    "substitute of a failed step": "sottovoce.network.local_round.substitute_state",
    "contributions": "sottovoce.network.local_round.LocalRound.contributions",
    # split cloud
    "helper's noise": "sottovoce.privacy.sampler.SecureSampler.blind",
    "key of masks": "sottovoce.network.masks.Secret.stream",
    "masks": "sottovoce.network.masks.Stream.rounds",
    "session": "sottovoce.network.masks.new_session",
    "masked contribution": "sottovoce.network.masks.Masker.mask",
    "who takes part": "sottovoce.network.protocol.helper_machine.HelperMachine._taken",
    "question": "sottovoce.network.protocol.helper_machine._question",
    "pledge": "sottovoce.network.identity.pledges.HelperKnown.pledged",
    # certificate
    "certificate": "sottovoce.certificate.certificate.certify",
    "tightened domain": "sottovoce.certificate.domain.tightened_domain",
    "proven convexity": "sottovoce.certificate.assumptions.convex_sums",
    "slopes of a fleet": "sottovoce.certificate.influence.slope_bounds",
    "influences": "sottovoce.certificate.influence.mixture_bounds",
    "length of a slope": "sottovoce.certificate.influence._norm",
    "supremum": "sottovoce.certificate.supremum.settle",
    "parts of a state": "sottovoce.certificate.sensitivity._components",
    "weighted slopes": "sottovoce.certificate.sensitivity._scale_slopes",
    "joint sensitivity": "sottovoce.certificate.sensitivity.Sensitivity.together",
    "sensitivity": "sottovoce.certificate.sensitivity.sensitivity",
    "ranges of contributions": "sottovoce.certificate.contributions.contribution_ranges",
    "Slater point": "sottovoce.certificate.slater.slater_point",
    "sum of intervals": "sottovoce.formula.intervals.Interval.__add__",
    "evaluation error": "sottovoce.formula.enclosure.evaluation_error",
    "spectral bounds": "sottovoce.certificate.branch.singular_bounds",
    # statement
    "distinct labels": "sottovoce.problem.agents.require_distinct_labels",
}
