"""The chip table: JAX's own descriptions, names, devices. Nothing here loads libtpu."""

from __future__ import annotations

import subprocess
import sys

import pytest
from jax.experimental.pallas import tpu as pltpu

from conformance import chips
from conformance.compiler.process import abstract_mesh

each_chip = pytest.mark.parametrize("chip", chips.ALL, ids=chips.NAMES)


def test_names_are_unique_and_found():
    assert len(set(chips.NAMES)) == len(chips.ALL) == 8
    assert [chips.get(name) for name in chips.NAMES] == list(chips.ALL)


def test_default_chips_are_known():
    assert set(chips.DEFAULT) < set(chips.NAMES)


def test_unknown_chip_is_named_and_the_known_listed():
    with pytest.raises(ValueError, match=r"'v9'.*v2, v3, v4, v4-megacore, v5e, v5p, v6e, tpu7x"):
        chips.get("v9")


@each_chip
def test_info_is_what_jax_says_of_the_device(chip):
    with abstract_mesh(chip):
        assert pltpu.get_tpu_info() == chip.info
    assert chip.info is chip.info


@each_chip
def test_cores_agree_with_jax(chip):
    version = pltpu.ChipVersion(chip.version)
    assert chip.megacore == (chip.cores == 2)
    assert chip.megacore <= version.supports_megacore
    assert chip.info.num_cores == chip.cores


def test_megacore_chips():
    assert [chip.name for chip in chips.ALL if chip.megacore] == ["v4-megacore", "v5p"]


@each_chip
def test_a_device_leads_back_to_its_row(chip):
    assert chips.of_device(chip.device_kind, chip.cores) is chip


def test_unknown_device_is_named():
    with pytest.raises(ValueError, match=r"'TPU v9' with 1 cores.*'TPU v5' with 2"):
        chips.of_device("TPU v9", 1)


def test_importing_the_table_loads_neither_jax_nor_libtpu():
    script = (
        "import sys\n"
        "from conformance import chips\n"
        "assert 'jax' not in sys.modules\n"
        "chips.get('v5e').info.bf16_ops_per_second\n"
        "assert 'libtpu.so' not in open('/proc/self/maps').read()\n"
    )
    if not sys.platform.startswith("linux"):
        pytest.skip("reads /proc")
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
