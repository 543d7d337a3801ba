"""How strong an unmeasured common cause must be to explain an effect away."""

import math

import numpy as np

from fairbits.checks import in_range, positive, whole


def e_value(effect: float, sd: float) -> float:
    """Returns the E-value of an effect on a continuous outcome with standard deviation `sd`.

    RR ≈ exp(0.91·|effect|/sd), E = RR + √(RR(RR−1)) (VanderWeele and Ding 2017): the risk ratio with which an
    unmeasured cause would have to be tied to both sides to explain the effect away; 1 means none is needed.

    >>> round(e_value(0.5, 1.0), 2)
    2.53
    """
    size = 0.91 * abs(in_range("effect", effect)) / positive("sd", sd)
    ratio = float(np.exp(in_range("|effect|/sd", size, most=300)))
    return float(ratio + np.sqrt(ratio * (ratio - 1)))


def robustness_value(t: float, df: int) -> float:
    """Returns the share of residual variance an unmeasured cause must explain, on both sides, to void a link.

    RV = ½(√(f⁴ + 4f²) − f²) = 2/(1 + √(1 + 4/f²)), f = |t|/√df (Cinelli and Hazlett 2020); 0 fragile, towards 1 robust.

    >>> round(robustness_value(4.18, 783), 3)
    0.139
    """
    f = abs(in_range("t", t)) / math.sqrt(whole("df", df, least=1))
    return 2 / (1 + math.hypot(1, 2 / f)) if f > 0 else 0.0
