"""Write the result of a gate as JUnit XML, which CI servers show.

The format is that which Jenkins' and GitLab's readers take: `testsuites/testsuite/testcase` with `failure` or `error`.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from lockstep.errors import ExitCode
from lockstep.files import replacing
from lockstep.terminal import printable
from lockstep_gate.gating import Gated


def junit_xml(gated: Gated, text: str, *, seconds: float) -> bytes:
    """One test suite of one test: the training against its golden.

    gated: What was found.
    text: All that is said of it, for the body of a failure.
    seconds: How long it took.
    """
    code = gated.exit_code
    counts = {
        "tests": "1",
        "failures": str(int(code == ExitCode.DIFFERS)),
        "errors": str(int(code == ExitCode.FAILED)),
    }
    suites = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(
        suites, "testsuite", {"name": "lockstep gate", **counts, "time": f"{seconds:.3f}"}
    )
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in _properties(gated):
        ElementTree.SubElement(properties, "property", {"name": name, "value": _clean(value)})
    case = ElementTree.SubElement(
        suite, "testcase",
        {"classname": _clean(gated.golden.name or "golden"), "name": _clean(gated.variant or "numerics"),
         "time": f"{seconds:.3f}"},
    )  # fmt: skip
    if code != ExitCode.AGREES:
        kind = "failure" if code == ExitCode.DIFFERS else "error"
        words = gated.refused or gated.headline
        told = ElementTree.SubElement(case, kind, {"message": _clean(words), "type": kind})
        told.text = _body(text)
    else:
        ElementTree.SubElement(case, "system-out").text = _body(text)
    ElementTree.indent(suites)
    return bytes(ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True))


def write_junit(path: Path, xml: bytes) -> None:
    """Write it aside and move it into place. Raises OSError if the disk does not take it."""
    with replacing(path) as aside:
        aside.write_bytes(xml)


def _properties(gated: Gated) -> list[tuple[str, str]]:
    found = [("candidate", str(gated.candidate))]
    comparison = gated.comparison
    if comparison is not None:
        found.append(("verdict", comparison.verdict.value))
        found.append(("judged_by", comparison.judged_by))
        found += [("set-up", str(one)) for one in comparison.setup]
        for origin in comparison.origins[:1]:
            found += [("origin", f"{origin.module} / {origin.op}"), ("kind", origin.kind.value)]
            found.append(("source", origin.source))
    return found


def _clean(text: str) -> str:
    """Text on one line; XML 1.0 has no way to write most control characters."""
    return printable(text)


def _body(text: str) -> str:
    return "\n".join(printable(line) for line in text.splitlines())
