"""What other programs read of a finding."""

import msgspec
import numpy as np
import pytest

from diagnose.contracts.finding import Evidence


@pytest.mark.parametrize("value", [np.float64(1.5), np.float32(1.5), 1.5])
def test_a_number_of_numpy_can_be_written_as_json(value: float) -> None:
    assert msgspec.json.decode(msgspec.json.encode(Evidence("It is.", value, "ns")))["value"] == 1.5
    assert msgspec.json.encode(Evidence("It is.", np.int64(3))) == msgspec.json.encode(Evidence("It is.", 3))
