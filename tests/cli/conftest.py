"""Files that the tests of a module share."""

import pytest
from command_files import write_files


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder of data and models, which no test changes."""
    return write_files(tmp_path_factory.mktemp("files"))
