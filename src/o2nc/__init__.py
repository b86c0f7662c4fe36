"""o2nc: any online learner as a PyTorch optimizer, with a stationarity certificate.

    optimizer = learner × scaling × averages

* `learners` play the update Δ; `OGD` gives SGD with momentum, `ScaleFree` gives Adam.
* `scaling` has the laws of the random scalar s in x + sΔ; Exp(1) needs no reweighting.
* `averages` keeps x̄, ḡ and V, from which ``certificate(c)`` bounds ‖∇F(x̄)‖_c.

`ExponentiatedO2NC` (Algorithm 2 of the paper) multiplies any three; `ScaledSGDM` is the instance that replaces
``torch.optim.SGD``, `AdamW` the one for ``torch.optim.AdamW``; `extend` gives averages and certificate to any other
optimizer, `random_scaling` scales it; `OriginalO2NC` is Algorithm 1. `posthoc` makes averages of averages,
`recalibrated` makes BatchNorm's statistics fit x̄, `CertificateLogger` writes certificates down, `certify` certifies
iterates afterwards, `theory` has the theorems as functions, `problems` objectives with known constants.
"""

from o2nc import learners, problems, theory
from o2nc.averages.windows import Discount, Polynomial, Window
from o2nc.certificates.certificate import Certificate, Goldstein
from o2nc.certificates.certify import certify
from o2nc.laws import Gamma, Jitter, Uniform, Weibull
from o2nc.logger import CertificateLogger
from o2nc.optimizers.extend import extend, random_scaling
from o2nc.optimizers.o2nc import ExponentiatedO2NC, OriginalO2NC
from o2nc.optimizers.paper import ScaledSGDM
from o2nc.optimizers.torch_optimizers import SGD, AdamW
from o2nc.optimizers.wrapped import averaged
from o2nc.persist.batchnorm import recalibrated
from o2nc.scaling import Exponential, Law
from o2nc.snapshots import Posthoc, Snapshot, posthoc

__version__ = "0.1.0"

__all__ = [
    "SGD",
    "AdamW",
    "Certificate",
    "CertificateLogger",
    "Discount",
    "Exponential",
    "ExponentiatedO2NC",
    "Gamma",
    "Goldstein",
    "Jitter",
    "Law",
    "OriginalO2NC",
    "Polynomial",
    "Posthoc",
    "ScaledSGDM",
    "Snapshot",
    "Uniform",
    "Weibull",
    "Window",
    "averaged",
    "certify",
    "extend",
    "learners",
    "posthoc",
    "problems",
    "random_scaling",
    "recalibrated",
    "theory",
]
