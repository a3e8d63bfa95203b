"""`FailureReports`: a failure is always told, also one whose report cannot be made or sent.

A process of a run that fails at a report ends, and with it the run: without this its last lines
would say nothing of what has failed.
"""

import traceback
from collections.abc import Generator
from typing import Any

import pytest

INTERNAL_ERROR = pytest.ExitCode.INTERNAL_ERROR


class FailureReports:
    """A plugin of each process of a run."""

    def __init__(self) -> None:
        self._failed: list[str] = []
        self._is_broken = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """CPython 3.11.7 may fail at the source of a frame: "recursion depth mismatch"."""
        try:
            return (yield)
        except Exception:
            if call.excinfo is None:
                raise
            lines = traceback.format_exception(call.excinfo.value)
            return pytest.TestReport(
                nodeid=item.nodeid,
                location=item.location,
                keywords={},
                outcome="failed",
                longrepr="".join(lines),
                # A call may also be of collecting, for which this hook is not called.
                when=call.when,  # type: ignore[arg-type]
                duration=call.duration,
                start=call.start,
                stop=call.stop,
            )

    @pytest.hookimpl(wrapper=True)
    def pytest_report_to_serializable(self) -> Generator[None, Any, Any]:
        """What processes send to each other is UTF-8, which has no lone surrogates."""
        return encodable((yield))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.append(f"{report.nodeid} ({report.when}): {last_line(report)}")

    def pytest_testnodedown(self, node: Any, error: object) -> None:
        if error:
            self._failed.append(f"process {node.gateway.id}: {error}")

    def pytest_internalerror(self) -> None:
        self._is_broken = True

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        """pytest lists no failures after an error of its own, and xdist may forget one of a
        process that has no other test to run.
        """
        yield
        if self._is_broken:
            session.exitstatus = INTERNAL_ERROR
            print("\nfailed before this error:", *self._failed, sep="\n")


def encodable(value: Any) -> Any:
    """The same, with `?` for what UTF-8 cannot hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {encodable(key): encodable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(encodable, value))
    return value


def last_line(report: pytest.TestReport) -> str:
    return report.longreprtext.rstrip().rpartition("\n")[2][:200]
