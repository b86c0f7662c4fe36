"""Text that standard output can encode."""

import sys

# what stands for the paper's letters where there are none; x̄ and ḡ are a letter and a combining bar
_PLAIN = str.maketrans(
    {"‖": "|", "\u0304": "bar", "ḡ": "gbar", "∇": "grad ", "·": "*", "√": "sqrt ", "σ": "sigma", "−": "-"}
)


def printable(text: str) -> str:
    """Return the text, in ASCII if the encoding of standard output (cp1252, say) lacks one of its letters."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return text.translate(_PLAIN).encode("ascii", "replace").decode()
    return text
