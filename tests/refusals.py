"""Tables of what is refused."""

import pytest


def refusals(*rows):
    """Return a test that every call raises its error, in these words; a row is a call, its error and the words."""

    @pytest.mark.parametrize(("call", "error", "words"), rows)
    def test(call, error, words):
        with pytest.raises(error, match=words):
            call()

    return test
