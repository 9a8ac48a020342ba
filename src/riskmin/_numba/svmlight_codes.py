"""Codes and slots of the svmlight parser, which its caller reads without importing Numba."""

# Return codes of `parse`, each error with its range in `state`.
OK, NO_LABEL, BAD_PAIR, UNSORTED, TOO_LARGE, BAD_QID, QID_MISSING, QID_EXTRA = range(8)
# Modes of reading the first token of a row: a number, a number that may be missing, text.
LABEL_NUMBER, LABEL_OPTIONAL, LABEL_TEXT = range(3)
# Slots of `state`: counters that go from chunk to chunk, and the range of an erroneous token.
(
    LINE_NUMBER,
    HAS_QID,
    SMALLEST_INDEX,
    LARGEST_INDEX,
    LARGEST_INDEX_LINE,
    N_ROWS,
    N_VALUES,
    N_SLOW,
    ERROR_START,
    ERROR_STOP,
    N_STATE,
) = range(11)
