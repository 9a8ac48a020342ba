"""What common mistakes are answered: the rows of `benchmarks.mistakes`."""

import pytest
from benchmarks import mistakes


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mistakes")
    mistakes.write_files(folder)
    return folder


@pytest.mark.parametrize(
    ("what", "call", "words"), mistakes.IN_PYTHON, ids=lambda v: v if type(v) is str else ""
)
def test_a_mistake_in_python_is_answered(what, call, words):
    assert words in mistakes.answer(call)


@pytest.mark.parametrize(("line", "words"), mistakes.IN_A_SHELL)
def test_a_mistake_in_a_shell_is_answered(line, words, folder, run, monkeypatch):
    assert words in mistakes.answer_of_command(line, folder)
