"""o2nc: drop the learning-rate schedule, keep your PyTorch optimizer; and steps that non-smooth losses cannot trap.

    optimizer = rule × scaling × averages

* The rule is torch's SGD or AdamW (`SGD`, `AdamW`), any other optimizer's own step (`extend`), or an online learner.
* `average=Polynomial(12)` keeps x̄, a mean of the weights that is good at any moment: ``with opt.averaged(): …`` puts
  it into the model, ``opt.averaged_state_dict(model)`` returns it to ship; `averaged` does so for several optimizers.
* `scaling` has the laws of a random scalar s in x + sΔ, which frees momentum from traps; `random_scaling` scales any
  optimizer.
* ``opt.diagnose()`` says what the run is doing, with one action; `Ladder` lowers the learning rate when the run is
  stationary at it.
* ``certificate=True`` keeps ḡ and V as well, from which ``opt.certificate(c)`` bounds ‖∇F(x̄)‖_c.

The paper's own: `ScaledSGDM`, `ExponentiatedO2NC` (Algorithm 2, any of the `learners`), `OriginalO2NC` (Algorithm 1).
`posthoc` makes averages of averages, `CertificateLogger` writes certificates to CSV and TensorBoard, `certify`
certifies a list of iterates, `minimize` searches a certified point of a function, `theory` has the theorems as
functions, `problems` objectives with known constants.
"""

from o2nc import learners, problems, theory
from o2nc.averages.windows import Discount, Polynomial, Window
from o2nc.certificates.certificate import Certificate, Goldstein, certify
from o2nc.certificates.diagnosis import Diagnosis
from o2nc.certificates.ladder import Ladder
from o2nc.certificates.minimize import minimize
from o2nc.laws import Gamma, Jitter, Uniform, Weibull
from o2nc.logger import CertificateLogger
from o2nc.optimizers.extend import extend, random_scaling
from o2nc.optimizers.find_lr import FoundLR, find_lr
from o2nc.optimizers.o2nc import ExponentiatedO2NC, OriginalO2NC
from o2nc.optimizers.paper import ScaledSGDM
from o2nc.optimizers.torch_optimizers import SGD, AdamW
from o2nc.optimizers.wrapped import averaged
from o2nc.scaling import Exponential, Law
from o2nc.snapshots import Posthoc, Snapshot, posthoc

__version__ = "0.1.0"

__all__ = [
    "SGD",
    "AdamW",
    "Certificate",
    "CertificateLogger",
    "Diagnosis",
    "Discount",
    "Exponential",
    "ExponentiatedO2NC",
    "FoundLR",
    "Gamma",
    "Goldstein",
    "Jitter",
    "Ladder",
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
    "find_lr",
    "learners",
    "minimize",
    "posthoc",
    "problems",
    "random_scaling",
    "theory",
]
