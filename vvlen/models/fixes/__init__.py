"""Published changes of attention for longer inputs, as pure functions.

Instead of softmax, each maps logits z [..., n] to weights [..., n]
(`vvlen.models.fixes.learned` states the form):

  softmax(β(n) z)          `laws`: log_n, ssmax, sqrt_log_n, power, by `tempered`
  entmax-1.5(z)            `entmax`
  e^z / ‖e^z‖₂             `l2_softmax`
  e^z / (e^s + Σ e^z)      `sink`
  σ(z + b − ln n)          `sigmoid`

One's own is a function of the same form; `check` tests it before it is trained. Fields
of `vvlen.models.retriever.Retriever` hold these functions (`weights`), and what is no
function of logits: `qk_norm`, `gated` and `norm`. For RMSNorm after attention,
x / sqrt(mean(x²) + ε) ⊙ scale (arXiv 1910.07467; after attention: 2510.08341), the
norm is `flax.linen.RMSNorm(1e-5)`.
"""
