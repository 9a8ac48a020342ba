"""The tests of svmlight text are small, and most of them are for the compiled parser."""

import pytest

from riskmin.data.formats.svmlight import SvmlightReader


@pytest.fixture(autouse=True, scope="module")
def compiled_parser():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SvmlightReader, "INTERPRETED_BYTES", 0)
        yield
