"""pytest options, parametrization and guards. No judgement is made here.

A checkout's conftest.py loads it; elsewhere `pytest -p conformance.plugin --pyargs conformance`.
There is no pytest11 entry point: an installed package must not add `--mode` or `--report` to
somebody else's pytest.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pytest

from conformance.case import TIERS
from conformance.chips import NAMES as CHIPS
from conformance.chips import Chip
from conformance.chips import get as get_chip
from conformance.expectations import stale
from conformance.judge import Judge
from conformance.loading import DEFAULT_SUBJECT
from conformance.modes import MODES
from conformance.plan import Column, Options, Plan, PlanError, absolute, make_plan
from conformance.predictor import Predictor
from conformance.properties import PROPERTIES
from conformance.report import plots, timings
from conformance.report.lines import Lines, read
from conformance.report.matrix import Matrix, render
from conformance.report.support import Support
from conformance.runner import Runner
from conformance.schedule import LABEL as PREDICTED
from conformance.schedule import VALIDATED
from conformance.stopwatch import Stopwatch, Timed, Timer, Times
from conformance.timing import FORWARD
from conformance.verdict import Status

_OPTIONS = pytest.StashKey[Options]()
_PLAN = pytest.StashKey[Plan]()
_RESULTS = pytest.StashKey[Path]()
_PROBLEMS = pytest.StashKey[list[str]]()
_CONFORMS = pytest.StashKey[bool]()

_LOG_WIDTH = 160  # of the matrix where there is no terminal to fit it to
_INPUT = "conformance"  # key of what the controller tells xdist workers

# The mode whose child process compiles for chips that are not here.
_COMPILES = "aot"

# How many chips a machine has, where its device files do not say.
_CHIPS = "CONFORMANCE_TPU_CHIPS"

_HELP = {
    "--mode": ("NAMES", f"modes, comma separated, or all: {', '.join(MODES)}"),
    "--properties": (
        "NAMES",
        "properties that kernels claim, comma separated, all or none (default: all, unless --mode "
        f"is given): {', '.join(PROPERTIES)}",
    ),
    "--chip": ("NAMES", "chips, comma separated, or all"),
    "--cases": ("NAMES", "cases, comma separated; a path adds a case file or folder"),
    "--kernel": ("NAMES", "kernels by name or case/name, comma separated"),
    "--replay": ("ID", "run one example by its id, as printed by a failure"),
    "--subject": ("WHAT", "kernels to judge: a file, folder or module, with :ATTRIBUTE if need be"),
    "--max-examples": ("N", "generated points a case, each with all its input distributions"),
    "--tier": ("TIER", "how much: smoke, ci (default) or full"),
    "--example-timeout": ("SECONDS", "longest an example may take (default 120)"),
    "--expectations": (
        "FILE",
        "known failures (default: NAME.expectations.toml or expectations.toml beside the subject)",
    ),
    "--report": ("DIR", "keep results.jsonl and the matrices in DIR"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """The suite's options; pytest-benchmark and hypothesis keep theirs."""
    group = parser.getgroup("conformance", "conformance of Pallas TPU kernels")

    def add(name: str, **how: Any) -> None:
        metavar, text = _HELP[name]
        group.addoption(name, metavar=metavar, help=text, **how)

    for name in ("--mode", "--properties", "--chip", "--cases", "--kernel", "--replay"):
        add(name, action="append", default=None)
    add("--subject", default=DEFAULT_SUBJECT)
    add("--max-examples", type=int, default=None)
    add("--tier", choices=TIERS, default="ci")
    add("--example-timeout", type=float, default=120.0)
    add("--expectations", default=None)
    add("--report", default=None)
    group.addoption("--tpu", action="store_true", help="judge on the attached TPU (mode tpu)")
    group.addoption(
        "--benchmark", action="store_true", help="time kernels: measured with --tpu, else predicted"
    )


def _options(config: pytest.Config) -> Options:
    """The options of this process, or those of the controller in an xdist worker."""
    if hasattr(config, "workerinput"):
        return Options(**config.workerinput[_INPUT]["options"])

    def names(option: str) -> tuple[str, ...]:
        given = config.getoption(option) or []
        return tuple(dict.fromkeys(n for text in given for n in text.split(",") if n))

    expectations = config.getoption("--expectations")
    tpu = ("tpu",) if config.getoption("--tpu") else ()
    return Options(
        modes=tuple(dict.fromkeys((*names("--mode"), *tpu))),
        properties=names("--properties"),
        chips=names("--chip"),
        subject=absolute(config.getoption("--subject")),
        cases=tuple(map(absolute, names("--cases"))),
        kernels=names("--kernel"),
        max_examples=config.getoption("--max-examples"),
        tier=config.getoption("--tier"),
        replay=tuple(config.getoption("--replay") or ()),
        timeout=config.getoption("--example-timeout"),
        expectations=None if expectations is None else str(Path(expectations).resolve()),
        benchmark=config.getoption("--benchmark"),
    )


# --------------------------------------------------------------------------- configuration


def pytest_configure(config: pytest.Config) -> None:
    """Refuses what cannot be measured or found, before anything is collected."""
    if config.option.help:
        return
    _check_root(config)
    _check_hardware_options(config)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    config.stash[_OPTIONS] = _options(config)
    try:
        config.stash[_PLAN] = make_plan(config.stash[_OPTIONS])
    except PlanError as e:
        raise pytest.UsageError(str(e)) from e
    config.stash[_RESULTS] = _results_file(config)
    config.pluginmanager.register(_Session(config), "conformance-session")


_PATH_OPTIONS = ("--subject", "--report", "--cases", "--expectations")


def _check_root(config: pytest.Config) -> None:
    """pytest takes the value in `--report DIR` for a test path before it knows the option, and
    looks for its configuration there. UsageError with the spelling that works."""
    checkout = Path(__file__).resolve().parent.parent
    in_checkout = config.invocation_params.dir.resolve().is_relative_to(checkout)
    is_checkout = (checkout / "pytest.ini").is_file() and (checkout / "conftest.py").is_file()
    if not (is_checkout and in_checkout) or config.inipath == checkout / "pytest.ini":
        return
    for option, value in itertools.pairwise(config.invocation_params.args):
        if option in _PATH_OPTIONS and Path(value.partition(":")[0]).exists():
            raise pytest.UsageError(
                f"pytest took {value} for a test path and missed its pytest.ini; "
                f"write {option}={value}, with an equals sign"
            )


def _check_hardware_options(config: pytest.Config) -> None:
    workers = hasattr(config, "workerinput") or bool(getattr(config.option, "tx", None))
    benchmark, tpu = config.getoption("--benchmark"), config.getoption("--tpu")
    if benchmark and workers:
        raise pytest.UsageError(
            "--benchmark cannot be used with -n: timings must not share the machine with "
            "other workers"
        )
    if benchmark and not hasattr(config.option, "benchmark_min_rounds"):
        raise pytest.UsageError("--benchmark needs the plugin pytest_benchmark.plugin (-p)")
    wanted = len(getattr(config.option, "tx", None) or ())
    if tpu and wanted and not hasattr(config, "workerinput") and wanted > attached_chips():
        raise pytest.UsageError(
            f"--tpu -n {wanted}: each worker has a chip of its own, but this machine has "
            f"{attached_chips()}"
        )


def attached_chips() -> int:
    """TPU chips of this machine, by their device files: libtpu would take hold of them."""
    told = os.environ.get(_CHIPS)
    if told is not None:
        if not told.isdecimal():
            raise pytest.UsageError(f"{_CHIPS}={told}: must be the number of chips")
        return int(told)
    numbered = [p for p in Path("/dev/vfio").glob("*") if p.name.isdecimal()]
    return len(list(Path("/dev").glob("accel[0-9]*"))) or len(numbered)


def _own_chip(number: int) -> dict[str, str]:
    """The environment in which libtpu sees one chip of a host, as a host of its own."""
    return {
        "TPU_VISIBLE_CHIPS": str(number),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": "1,1,1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }


def _results_file(config: pytest.Config) -> Path:
    """The file that all workers append to; empty at the start, temporary without --report."""
    if hasattr(config, "workerinput"):
        return Path(config.workerinput[_INPUT]["results"])
    directory = config.getoption("--report") or tempfile.mkdtemp(prefix="conformance-")
    path = Path(directory).resolve()
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not config.option.collectonly:
            for name in ("results.jsonl", timings.FILE):
                (path / name).unlink(missing_ok=True)
    except OSError as e:
        raise pytest.UsageError(f"--report {directory}: cannot be written to: {e}") from e
    return path / "results.jsonl"


def pytest_unconfigure(config: pytest.Config) -> None:
    """Removes the results that nobody asked to keep."""
    mine = _RESULTS in config.stash and not hasattr(config, "workerinput")
    if mine and not config.getoption("--report"):
        shutil.rmtree(config.stash[_RESULTS].parent, ignore_errors=True)


class _Session:
    """Notices that conformance tests ran, in this process or in a worker."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "test_conforms[" in report.nodeid or "test_has_property[" in report.nodeid:
            self._config.stash[_CONFORMS] = True


class _Nodes:
    """Tells xdist workers what the controller was told."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, config: pytest.Config, specs: list[Any]) -> None:
        """A chip for each worker, before anything is loaded there."""
        if config.getoption("--tpu"):
            for number, spec in enumerate(specs):
                spec.env |= _own_chip(number)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[_INPUT] = {
            "results": str(node.config.stash[_RESULTS]),
            "options": asdict(node.config.stash[_OPTIONS]),
        }


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Registers the xdist part, which is there only with xdist."""
    pluginmanager.register(_Nodes(), "conformance-xdist")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test a kernel and mode@chip, one a kernel and property that it claims, and one a kernel,
    point and part that is timed."""
    if "timed" in metafunc.fixturenames:
        found = _timed(metafunc.config) if metafunc.config.stash[_OPTIONS].benchmark else {}
        metafunc.parametrize("timed", list(found.values()), ids=list(found))
    if "judged_kernel" not in metafunc.fixturenames:
        return
    plan = metafunc.config.stash[_PLAN]
    if "column" in metafunc.fixturenames:
        pairs = [(k, c) for k in plan.kernels for c in plan.columns_of(k)]
        ids = [f"{k.case}/{k.name}-{_column(c)}" for k, c in pairs]
        metafunc.parametrize(("judged_kernel", "column"), pairs, ids=ids)
    else:
        claims = plan.claims()
        ids = [f"{k.case}/{k.name}-{name}" for k, name in claims]
        metafunc.parametrize(("judged_kernel", "claimed"), claims, ids=ids)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A run without modes, properties or times does not show a skipped test in their place."""
    if _PLAN not in config.stash:
        return
    plan = config.stash[_PLAN]
    empty = {
        "column": not plan.columns,
        "claimed": not plan.claims(),
        "timed": not config.stash[_OPTIONS].benchmark,
    }
    items[:] = [
        item
        for item in items
        if not any(empty.get(name) for name in getattr(item, "fixturenames", ()))
    ]


def _timed(config: pytest.Config) -> dict[str, Timed]:
    """What is timed, by id; one for each kernel that says why nothing can be timed."""
    plan = config.stash[_PLAN]
    where = _timed_on(config)
    if isinstance(where, str):
        return {f"{k.case}/{k.name}": Timed(k, unavailable=where) for k in plan.kernels}
    label = "" if config.getoption("--tpu") else f"-{PREDICTED}"
    found = {}
    for kernel, chip in itertools.product(plan.kernels, where):
        for point, part in plan.timed(kernel, chip):
            name = point.id if part.name == FORWARD else f"{point.id}-{part.name}"
            full = f"{kernel.case}/{kernel.name}-{name}@{chip}{label}"
            found[full] = Timed(kernel, chip, point, part)
    return found


def _timed_on(config: pytest.Config) -> Sequence[str] | str:
    """The attached chip, or those that are predicted for; or why there is none."""
    if not config.getoption("--tpu"):
        given = config.stash[_OPTIONS].chips
        chosen = CHIPS if "all" in given else given or VALIDATED
        return MODES[_COMPILES].unavailable(chosen[0]) or chosen
    chip = _attached()
    return chip if isinstance(chip, str) else (chip.name,)


def _timer() -> Timer:
    return cast(Timer, MODES["tpu"])


def _attached() -> Chip | str:
    """The chip of this machine, or why it has none to time on."""
    try:
        return MODES["tpu"].unavailable(None) or _timer().attached()
    except ValueError as e:
        return str(e)


def _column(column: Column) -> str:
    mode, chip = column
    return mode if chip is None else f"{mode}@{chip}"


# --------------------------------------------------------------------------- fixtures


@pytest.fixture(scope="session")
def plan(request: pytest.FixtureRequest) -> Plan:
    """What the run judges."""
    return request.config.stash[_PLAN]


@pytest.fixture(scope="session")
def runner(request: pytest.FixtureRequest, plan: Plan) -> Iterator[Runner]:
    """The worker's child processes, which end with the session."""
    cache = None
    if getattr(request.config, "cache", None) is not None:
        cache = str(request.config.cache.mkdir("conformance"))
    runner = Runner(plan.subject.spec, plan.case_files, plan.timeout, cache)
    yield runner
    runner.close()


@pytest.fixture(scope="session")
def judge(runner: Runner) -> Judge:
    """The worker's judge."""
    return Judge(runner)


@pytest.fixture(scope="session")
def lines(request: pytest.FixtureRequest, plan: Plan) -> Lines:
    """Where this worker writes its verdicts."""
    worker = getattr(request.config, "workerinput", {}).get("workerid", "main")
    return Lines(request.config.stash[_RESULTS], plan.subject.spec, worker)


@pytest.fixture(scope="session")
def times(request: pytest.FixtureRequest, plan: Plan, runner: Runner) -> Mapping[str, Times]:
    """What tells times, by chip: a stopwatch for the attached one, or predictors."""
    where = _timed_on(request.config)
    if isinstance(where, str):
        return {}
    if not request.config.getoption("--tpu"):
        return {chip: Predictor(runner, get_chip(chip), plan.targets) for chip in where}
    rounds = request.config.getoption("benchmark_min_rounds")
    return {chip: Stopwatch(_timer(), get_chip(chip), plan.targets, rounds) for chip in where}


@pytest.fixture(scope="session")
def timing_lines(request: pytest.FixtureRequest, plan: Plan) -> timings.Timings:
    """Where times are written."""
    directory = request.config.stash[_RESULTS].parent
    return timings.Timings(directory / timings.FILE, plan.subject.spec)


# --------------------------------------------------------------------------- the end of a run


def pytest_sessionfinish(session: pytest.Session) -> None:
    """What the verdicts say together can fail a run: stale expectations, an idle TPU."""
    config = session.config
    if hasattr(config, "workerinput") or config.option.collectonly or _PLAN not in config.stash:
        return
    config.stash[_PROBLEMS] = problems = _problems(config)
    if problems and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _problems(config: pytest.Config) -> list[str]:
    rows, plan = list(read(config.stash[_RESULTS])), config.stash[_PLAN]
    problems = []
    if rows:
        today = datetime.datetime.now(datetime.UTC).date()
        problems = stale(plan.expectations, rows, plan.covered_by(rows), today)
    elif config.stash.get(_CONFORMS, False):
        problems.append("nothing was judged: no example is left for the selected kernels and modes")
    if config.getoption("--tpu") and not any(
        r["mode"] == "tpu" and r["status"] == Status.PASS for r in rows
    ):
        problems.append("--tpu was given, but nothing passed on a TPU")
    if config.getoption("--benchmark") and not any(r["seconds"] for r in _times(config)):
        problems.append("--benchmark was given, but nothing was timed")
    return problems


def _times(config: pytest.Config) -> list[dict[str, Any]]:
    return list(read(config.stash[_RESULTS].parent / timings.FILE))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The matrix, what is wrong with the run as a whole, and where the results are."""
    rows, times = list(read(config.stash[_RESULTS])), _times(config)
    if rows:
        _show(terminalreporter, config.stash[_PLAN], rows)
    if times:
        _write_table(terminalreporter, functools.partial(timings.render, times))
    for problem in config.stash.get(_PROBLEMS, []):
        terminalreporter.write_line(problem, red=True)
    if (rows or times) and config.getoption("--report"):
        directory = config.stash[_RESULTS].parent
        _write_report(directory, rows)
        if times:
            (directory / "times.txt").write_text(timings.render(times, _LOG_WIDTH, False))
            plots.write_all(times, config.stash[_PLAN].cases, directory)
        terminalreporter.write_line(f"report: {directory}")


def _show(terminalreporter: Any, plan: Plan, rows: list[dict[str, Any]]) -> None:
    order = {(k.case, k.name): n for n, k in enumerate(plan.kernels)}
    rows.sort(key=lambda r: order.get((r["case"], r["kernel"]), len(order)))
    _write_table(terminalreporter, functools.partial(_matrices, rows))
    for line in plan.left_out():
        terminalreporter.write_line(line)


def _write_table(terminalreporter: Any, render: Callable[[int, bool], str]) -> None:
    """As wide as the terminal, if it is one."""
    writer = terminalreporter._tw
    width = writer.fullwidth if writer.hasmarkup else _LOG_WIDTH
    terminalreporter.write_line("")
    terminalreporter.write(render(width, writer.hasmarkup))


def _matrices(rows: Sequence[Mapping[str, Any]], width: int, color: bool) -> str:
    """Kernel x mode and, under it, kernel x property, each where there is something to show."""
    properties = [r for r in rows if r["mode"] in PROPERTIES]
    modes = [r for r in rows if r["mode"] not in PROPERTIES]
    text = render(Matrix(modes), width, color) if modes else ""
    if properties:
        text += render(Matrix(properties), width, color, "Kernel x property")
    return text


def _write_report(directory: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """The matrix and, where chips were judged, the support matrix, beside results.jsonl."""
    if not rows:
        return
    (directory / "matrix.txt").write_text(_matrices(rows, _LOG_WIDTH, False))
    for name, mode in MODES.items():
        support = Support(rows, name, mode.chips)
        if support.chips:
            (directory / f"support-{name}.md").write_text(support.markdown())
            (directory / f"support-{name}.csv").write_text(support.csv())
