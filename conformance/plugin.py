"""pytest options, parametrization and guards. No judgement is made here.

A checkout's conftest.py loads it; elsewhere `pytest -p conformance.plugin --pyargs conformance`.
There is no pytest11 entry point: an installed package must not add `--mode` or `--report` to
somebody else's pytest.
"""

from __future__ import annotations

import datetime
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from conformance.case import TIERS, Case, Example, Kernel, Negative
from conformance.examples import ReplayError, for_case, parse_id
from conformance.expectations import Expectation, ExpectationError, stale
from conformance.expectations import load as load_expectations
from conformance.judge import Judge
from conformance.loading import (
    DEFAULT_SUBJECT,
    LoadError,
    Subject,
    load_cases,
    load_subject,
    negative_example,
    subject_folder,
)
from conformance.modes import MODES
from conformance.report.lines import Lines, read
from conformance.report.matrix import Matrix, render
from conformance.report.support import Support
from conformance.runner import Runner
from conformance.verdict import Status

_PLAN = pytest.StashKey["Plan"]()
_RESULTS = pytest.StashKey[Path]()
_PROBLEMS = pytest.StashKey[list[str]]()
_CONFORMS = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The suite's options; pytest-benchmark and hypothesis keep theirs."""
    group = parser.getgroup("conformance", "conformance of Pallas TPU kernels")
    many = {"action": "append", "default": None}
    group.addoption("--mode", **many, metavar="NAMES", help=f"modes, comma separated, or all: {', '.join(MODES)}")
    group.addoption("--chip", **many, metavar="NAMES", help="chips, comma separated, or all")
    group.addoption("--subject", default=DEFAULT_SUBJECT, metavar="WHAT", help="kernels to judge: a file, a folder or a module, with an optional :ATTRIBUTE (default: the reference kernels)")
    group.addoption("--cases", **many, metavar="NAMES", help="cases, comma separated; a path adds a case file or folder")
    group.addoption("--kernel", **many, metavar="NAMES", help="kernels by name or case/name, comma separated")
    group.addoption("--max-examples", type=int, default=None, metavar="N", help="generated points a case (each with all its input distributions)")
    group.addoption("--tier", choices=TIERS, default="ci", help="how much: smoke, ci (default) or full")
    group.addoption("--replay", **many, metavar="ID", help="run one example by its id, as printed by a failure")
    group.addoption("--example-timeout", type=float, default=120.0, metavar="SECONDS", help="longest an example may take (default 120)")
    group.addoption("--report", default=None, metavar="DIR", help="keep results.jsonl and the matrix in DIR")
    group.addoption("--expectations", default=None, metavar="FILE", help="known failures, TOML (default: expectations.toml beside the subject)")
    group.addoption("--tpu", action="store_true", help="run on the attached TPU (mode tpu); fails without one")
    group.addoption("--benchmark", action="store_true", help="time kernels on the attached TPU; not together with -n")


_INPUT = "conformance"  # key of what the controller tells xdist workers


@dataclass(frozen=True)
class Plan:
    """What this run judges, as the options say.

    Attributes:
      columns: (mode, chip) pairs.
      modes_by_name: a mode that was asked for by name must be there.
      complete: nothing narrows the selection but modes and chips, so that an expectation which
        covers no verdict is out of date.
    """

    cases: Mapping[str, Case]
    case_files: tuple[str, ...]
    subject: Subject
    kernels: tuple[Kernel, ...]
    columns: tuple[tuple[str, str | None], ...]
    modes_by_name: bool
    tier: str
    max_examples: int | None
    replay: tuple[Example, ...]
    replay_negatives: tuple[tuple[str, str], ...]
    expectations: tuple[Expectation, ...]
    complete: bool

    def examples(self, kernel: Kernel, mode: str) -> list[Example]:
        """The examples of one kernel in one mode."""
        if self.replay or self.replay_negatives:
            return [e for e in self.replay if e.case == kernel.case]
        found = for_case(self.cases[kernel.case], self.tier, self.max_examples)
        found = tuple(e for e in found if not e.modes or mode in e.modes)
        return list(found) if MODES[mode].values else _one_each(found)

    def negatives(self, kernel: Kernel, mode: str, chip: str | None) -> list[Negative]:
        """The negative examples that this kernel promises and this mode can judge."""
        if not kernel.checks_inputs:
            return []
        found = [n for n in self.cases[kernel.case].negatives if n.phase in MODES[mode].phases]
        found = [n for n in found if not n.chips or chip in n.chips]
        if self.replay or self.replay_negatives:
            return [n for n in found if (kernel.case, n.name) in self.replay_negatives]
        return found


def _one_each(examples: tuple[Example, ...]) -> list[Example]:
    """The first example of each point: for modes that look at no values."""
    return list({repr(sorted(e.params.items())): e for e in reversed(examples)}.values())[::-1]


# --------------------------------------------------------------------------- options to plan


def _names(config: pytest.Config, option: str) -> list[str]:
    """A comma-separated, repeatable option as a list without repetitions."""
    given = config.getoption(option) or []
    return list(dict.fromkeys(n for text in given for n in text.split(",") if n))


def _absolute(place: str) -> str:
    """A path made absolute, its `:ATTRIBUTE` kept; names of cases and modules as they are."""
    path, colon, attribute = place.partition(":")
    is_path = "/" in path or path.endswith(".py")
    return f"{Path(path).resolve()}{colon}{attribute}" if is_path else place


def _absolute_file(place: str | None) -> str | None:
    return None if place is None else str(Path(place).resolve())


def _chosen(option: str, given: Sequence[str], known: Sequence[str]) -> list[str]:
    """`given`, `all` spelled out; UsageError naming the first unknown value."""
    for name in given:
        if name not in known and name != "all":
            raise pytest.UsageError(f"{option} {name}: unknown; known: {', '.join(known)}")
    return list(known if "all" in given else given)


def _make_plan(config: pytest.Config) -> Plan:
    told = getattr(config, "workerinput", {}).get(_INPUT, {})
    given = told.get("cases") or [_absolute(c) for c in _names(config, "--cases")]
    case_files = tuple(c for c in given if "/" in c)
    spec = told.get("subject") or _absolute(config.getoption("--subject"))
    try:
        cases = load_cases(case_files)
        subject = load_subject(spec, tuple(cases))
    except LoadError as e:
        raise pytest.UsageError(str(e)) from e
    replay, negatives = _replayed(config, cases)
    replayed = {e.case for e in replay} | {case for case, _ in negatives}
    names = [c for c in given if c not in case_files]
    wanted = _chosen("--cases", names, list(cases)) or sorted(replayed) or list(cases)
    columns, by_name = _columns(config)
    most = config.getoption("--max-examples")
    if most is not None and most < 0:
        raise pytest.UsageError(f"--max-examples {most}: must not be negative")
    timeout = config.getoption("--example-timeout")
    if not timeout > 0:
        raise pytest.UsageError(f"--example-timeout {timeout:g}: must be positive")
    return Plan(
        cases=cases,
        case_files=case_files,
        subject=subject,
        kernels=_kernels(config, subject, wanted),
        columns=columns,
        modes_by_name=by_name,
        tier=config.getoption("--tier"),
        max_examples=most,
        replay=replay,
        replay_negatives=negatives,
        expectations=_expectations(config, spec),
        complete=not (given or config.getoption("--kernel") or replay or negatives),
    )


def _expectations(config: pytest.Config, subject: str) -> tuple[Expectation, ...]:
    """Known failures of the file given, or of the one beside the subject, if there is one."""
    given = getattr(config, "workerinput", {}).get(_INPUT, {}).get("expectations")
    given = given or config.getoption("--expectations")
    path = Path(given) if given else subject_folder(subject) / "expectations.toml"
    if given is None and not path.is_file():
        return ()
    try:
        return load_expectations(path, version("jax"))
    except ExpectationError as e:
        raise pytest.UsageError(f"--expectations {e}") from e


def _replayed(
    config: pytest.Config, cases: Mapping[str, Case]
) -> tuple[tuple[Example, ...], tuple[tuple[str, str], ...]]:
    """Examples and negative examples that `--replay` names."""
    examples: list[Example] = []
    negatives: list[tuple[str, str]] = []
    for text in config.getoption("--replay") or []:
        case, _, rest = text.partition("/")
        known = cases[case].negatives if case in cases else ()
        ids = {negative_example(cases[case], n).pinned: n.name for n in known}
        point = rest.split(",")[0]
        if point in ids:
            negatives.append((case, ids[point]))
            continue
        try:
            examples += parse_id(cases, text)
        except ReplayError as e:
            raise pytest.UsageError(str(e)) from e
    return tuple(examples), tuple(negatives)


def _kernels(config: pytest.Config, subject: Subject, cases: list[str]) -> tuple[Kernel, ...]:
    kernels = [k for k in subject.kernels if k.case in cases]
    kernels.sort(key=lambda k: cases.index(k.case))
    if not kernels:
        raise pytest.UsageError(
            f"--subject {subject.spec}: it has no kernel for case {', '.join(cases)}"
        )
    given = _names(config, "--kernel")
    known = {name for k in kernels for name in (k.name, f"{k.case}/{k.name}")}
    _chosen("--kernel", given, sorted(known))
    return tuple(
        k for k in kernels if not given or k.name in given or f"{k.case}/{k.name}" in given
    )


def _columns(config: pytest.Config) -> tuple[tuple[tuple[str, str | None], ...], bool]:
    """(mode, chip) pairs, and whether modes were asked for by name."""
    given = _names(config, "--mode")
    if config.getoption("--tpu") and "tpu" not in given:
        given.append("tpu")
    modes = _chosen("--mode", given, list(MODES))
    by_name = bool(modes) and "all" not in given
    modes = modes or [name for name, mode in MODES.items() if mode.default]
    chips = _names(config, "--chip")
    known = list(dict.fromkeys(c for mode in MODES.values() for c in mode.chips))
    _chosen("--chip", chips, known)
    columns: list[tuple[str, str | None]] = []
    for name in modes:
        mode = MODES[name]
        if not mode.chips:
            columns.append((name, None))
            continue
        wanted = _chosen("--chip", chips, mode.chips) if chips else mode.default_chips
        columns += [(name, chip) for chip in wanted]
    if not columns:
        raise pytest.UsageError(f"--mode {','.join(given)} and --chip {','.join(chips)} select nothing")
    return tuple(columns), by_name


# --------------------------------------------------------------------------- configuration


_PATH_OPTIONS = ("--subject", "--report", "--cases")


def _check_root(config: pytest.Config) -> None:
    """pytest takes the value in `--report DIR` for a test path before it knows the option, and
    looks for its configuration there. UsageError with the spelling that works."""
    checkout = Path(__file__).resolve().parent.parent
    in_checkout = config.invocation_params.dir.resolve().is_relative_to(checkout)
    is_checkout = (checkout / "pytest.ini").is_file() and (checkout / "conftest.py").is_file()
    if not (is_checkout and in_checkout) or config.inipath is not None or config.option.help:
        return
    args = config.invocation_params.args
    for option, value in zip(args, args[1:], strict=False):
        if option in _PATH_OPTIONS and Path(value.partition(":")[0]).exists():
            raise pytest.UsageError(
                f"pytest took {value} for a test path and missed its pytest.ini; "
                f"write {option}={value}, with an equals sign"
            )


def pytest_configure(config: pytest.Config) -> None:
    """Refuses what cannot be measured, and prepares the shared results file."""
    _check_root(config)
    if config.getoption("--benchmark") and _workers(config):
        raise pytest.UsageError(
            "--benchmark cannot be used with -n: timings must not share the machine with "
            "other workers"
        )
    if config.getoption("--benchmark") and not config.getoption("--tpu"):
        raise pytest.UsageError(
            "--benchmark needs --tpu: device time is measured on an attached TPU; "
            "predicted time without one is not there yet"
        )
    if config.getoption("--tpu") and _workers(config):
        raise pytest.UsageError("--tpu cannot be used with -n: one process owns the TPU")
    if not hasattr(config, "workerinput"):
        directory = config.getoption("--report") or tempfile.mkdtemp(prefix="conformance-")
        path = Path(directory)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise pytest.UsageError(f"--report {directory}: not a directory to write to: {e}") from e
        (path / "results.jsonl").unlink(missing_ok=True)
        config.stash[_RESULTS] = path.resolve() / "results.jsonl"
    else:
        config.stash[_RESULTS] = Path(config.workerinput[_INPUT]["results"])
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    config.pluginmanager.register(_Session(config), "conformance-session")
    if not config.option.help:
        plan_of(config)  # so that bad options end the run before anything is collected


def _workers(config: pytest.Config) -> bool:
    """Whether the run is distributed: `-n 1` or more, seen from the controller or a worker."""
    return hasattr(config, "workerinput") or bool(getattr(config.option, "tx", None))


def plan_of(config: pytest.Config) -> Plan:
    """The plan of this run, made once."""
    if _PLAN not in config.stash:
        config.stash[_PLAN] = _make_plan(config)
    return config.stash[_PLAN]


class _Session:
    """Notices that conformance tests ran, in this process or in a worker."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "test_conforms[" in report.nodeid:
            self._config.stash[_CONFORMS] = True


class _Nodes:
    """Tells xdist workers where the results go and, as they start in another directory, the
    absolute paths of what to load."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[_INPUT] = {
            "results": str(node.config.stash[_RESULTS]),
            "subject": _absolute(node.config.getoption("--subject")),
            "expectations": _absolute_file(node.config.getoption("--expectations")),
            "cases": [_absolute(c) for c in _names(node.config, "--cases")],
        }


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Registers the xdist part, which is there only with xdist."""
    pluginmanager.register(_Nodes(), "conformance-xdist")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test a kernel and mode@chip."""
    if "judged_kernel" not in metafunc.fixturenames:
        return
    plan = plan_of(metafunc.config)
    pairs = [(k, c) for k in plan.kernels for c in plan.columns]
    ids = [f"{k.case}/{k.name}-{_column(c)}" for k, c in pairs]
    metafunc.parametrize(("judged_kernel", "column"), pairs, ids=ids)


def _column(column: tuple[str, str | None]) -> str:
    mode, chip = column
    return mode if chip is None else f"{mode}@{chip}"


# --------------------------------------------------------------------------- fixtures


@pytest.fixture(scope="session")
def plan(request: pytest.FixtureRequest) -> Plan:
    """What the run judges."""
    return plan_of(request.config)


@pytest.fixture(scope="session")
def judge(request: pytest.FixtureRequest, plan: Plan) -> Iterator[Judge]:
    """The worker's judge; its child processes end with the session."""
    config = request.config
    cache = None
    if hasattr(config, "cache") and config.cache is not None:
        cache = str(config.cache.mkdir("conformance"))
    runner = Runner(
        plan.subject.spec, plan.case_files, config.getoption("--example-timeout"), cache
    )
    yield Judge(runner)
    runner.close()


@pytest.fixture(scope="session")
def lines(request: pytest.FixtureRequest, plan: Plan) -> Lines:
    """Where this worker writes its verdicts."""
    worker = getattr(request.config, "workerinput", {}).get("workerid", "main")
    return Lines(request.config.stash[_RESULTS], plan.subject.spec, worker)


# --------------------------------------------------------------------------- the end of a run


def pytest_sessionfinish(session: pytest.Session) -> None:
    """What the verdicts say together can fail a run: stale expectations, an idle TPU."""
    config = session.config
    if hasattr(config, "workerinput") or config.option.collectonly or config.option.help:
        return
    config.stash[_PROBLEMS] = problems = _problems(config)
    if problems and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _problems(config: pytest.Config) -> list[str]:
    rows = list(read(config.stash[_RESULTS]))
    plan = plan_of(config)
    problems = []
    if not rows and config.stash.get(_CONFORMS, False):
        problems.append("nothing was judged: no example is left for the selected kernels and modes")
    if rows:
        today = datetime.datetime.now(datetime.UTC).date()
        problems = stale(plan.expectations, rows, _complete(plan, rows), today)
    if config.getoption("--tpu") and not any(
        r["mode"] == "tpu" and r["status"] == Status.PASS for r in rows
    ):
        problems.append("--tpu was given, but nothing passed on a TPU")
    return problems


def _complete(plan: Plan, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether every kernel of the subject was judged in every mode that the run includes."""
    judged = {(r["case"], r["kernel"], r["mode"], r["chip"]) for r in rows}
    wanted = {(k.case, k.name, *column) for k in plan.kernels for column in plan.columns}
    return plan.complete and judged == wanted


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The matrix, what is wrong with the run as a whole, and where the results are."""
    rows = sorted(read(config.stash[_RESULTS]), key=lambda r: (r["case"], r["kernel"]))
    if rows:
        _show(terminalreporter, config, rows)
    for problem in config.stash.get(_PROBLEMS, []):
        terminalreporter.write_line(problem, red=True)
    if rows and config.getoption("--report"):
        directory = config.stash[_RESULTS].parent
        _write_report(directory, rows)
        terminalreporter.write_line(f"report: {directory}")


def _show(terminalreporter: Any, config: pytest.Config, rows: list[dict[str, Any]]) -> None:
    order = {(k.case, k.name): n for n, k in enumerate(plan_of(config).kernels)}
    rows.sort(key=lambda r: order.get((r["case"], r["kernel"]), len(order)))
    writer = terminalreporter._tw
    text = render(Matrix(rows), writer.fullwidth, writer.hasmarkup)
    terminalreporter.write_line("")
    terminalreporter.write(text)
    for line in _left_out(config):
        terminalreporter.write_line(line)


def _write_report(directory: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """The matrix and, where chips were judged, the support matrix, beside results.jsonl."""
    (directory / "matrix.txt").write_text(render(Matrix(rows), 120, False))
    for name, mode in MODES.items():
        support = Support(rows, name, mode.chips)
        if support.chips:
            (directory / f"support-{name}.md").write_text(support.markdown())
            (directory / f"support-{name}.csv").write_text(support.csv())


def _left_out(config: pytest.Config) -> list[str]:
    """Pinned examples that this run could not afford, so that nothing is skipped silently."""
    plan = plan_of(config)
    lines = []
    rows = [r for k in {k.case for k in plan.kernels} for r in plan.cases[k].rows]
    if plan.replay or plan.replay_negatives:
        return []
    bigger = sum(TIERS.index(r["tier"]) > TIERS.index(plan.tier) for r in rows)
    if bigger:
        lines.append(f"{bigger} pinned examples belong to a larger --tier than {plan.tier}")
    modes = {mode for mode, _ in plan.columns}
    other = sum(bool(r.get("modes")) and not modes & set(r["modes"]) for r in rows)
    if other:
        lines.append(f"{other} pinned examples can only be afforded by other modes")
    return lines
