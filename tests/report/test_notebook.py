"""Live progress in a notebook, executed by a real kernel."""

import re
import warnings

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

CELL = """
import time, warnings
warnings.simplefilter("error")
from sklearn.datasets import load_breast_cancer
from riskmin import LinearClassifier

X, y = load_breast_cancer(return_X_y=True)
model = LinearClassifier("hinge", alpha=1e-3, standardize=True, solver="bundle", verbose=True)
model.set_params(callback=lambda iterate, row: time.sleep(0.02))
model.fit(X, y)
print(model.result_.lower, model.result_.value)
"""


@pytest.mark.slow
def test_the_cell_shows_one_bar_that_ends_full_with_the_bounds_of_the_fit():
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    updates = []
    client = nbclient.NotebookClient(book, timeout=120, kernel_name="python3")
    handle = client.process_message

    def record(message, *rest):
        if message["msg_type"] in ("display_data", "update_display_data"):
            updates.append(message["content"]["data"])
        return handle(message, *rest)

    client.process_message = record
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the libraries of Jupyter
        client.execute()
    # all updates replaced one output, which is saved with the notebook
    (shown,) = [out for out in book.cells[0].outputs if out.output_type == "display_data"]
    printed = next(out.text for out in book.cells[0].outputs if out.output_type == "stream")
    assert not [out for out in book.cells[0].outputs if out.get("name") == "stderr"]
    shares = [float(re.search(r'<progress value="([\d.]+)"', data["text/html"])[1]) for data in updates]
    assert len(shares) > 3
    assert shares == sorted(shares)
    assert shares[0] < 0.9
    assert shares[-1] == 1.0
    assert shown.data["text/html"] == updates[-1]["text/html"]
    lower, value = map(float, printed.split())
    assert f"{lower:.6g} ≤ min J ≤ {value:.6g}" in shown.data["text/plain"]
