"""Two functionals in another way: same parameters, same meaning."""

from gptrs.api.models import functionals as F


def silu(x):
    """`x/2 (1 + tanh(x/2))`, since `logistic(x) = (1 + tanh(x/2)) / 2`."""
    half = x * 0.5
    return half * (F.tanh(half) + 1)


def gelu(x, approximate="none"):
    """`x * logistic(1.702 x)` (Hendrycks and Gimpel 2016, section 2)."""
    return F.silu(x * 1.702) / 1.702


def why_not_gelu(x, approximate="none"):
    """The error, up to 0.02, is that of the model where it was not trained with this form."""
    if approximate != "none":
        return f"approximate={approximate!r} asks for another form"
    if x.dtype.bits < 32:
        return f"it takes f32 and f64, got {x.type}"
    return None
