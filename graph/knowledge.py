"""A diagnosis as a question to the knowledge base."""

from graph.state import Data


def describe_situation(analysis: Data) -> str:
    """The words of a diagnosis report: what limits, on what, under which plan."""
    facts, diagnosis = analysis["facts"], analysis["diagnosis"]
    fields = ("tp", "pp", "cp", "ep", "zero_stage", "recompute")
    plan = ", ".join(f"{name} {facts[name]}" for name in fields if name in facts)
    evidence = ". ".join(one["says"] for one in diagnosis["evidence"])
    return (
        f"Bottleneck {diagnosis['bottleneck']}. {evidence}. {facts['architecture']} model of "
        f"{facts['parameters_b']:.0f}B parameters on {facts['num_devices']} {facts['device']}, "
        f"{facts['framework']}, sequence {facts['seq_len']}, {plan}, micro-batch {facts['micro_batch_size']}"
    )


def facets_of(analysis: Data) -> Data:
    facts = analysis["facts"]
    return {
        "device": facts["device"],
        "vendor": facts["vendor"],
        "architecture": facts["architecture"],
        "bottleneck": analysis["diagnosis"]["bottleneck"],
        "num_devices": facts["num_devices"],
    }
