"""Published changes of attention for longer inputs, as pure functions.

Instead of softmax, each maps logits z [..., n] to weights [..., n]
(`vvlen.models.fixes.learned` states the form):

  softmax(β(n) z)          `laws`: log_n, ssmax, sqrt_log_n, power, by `tempered`
  entmax-1.5(z)            `entmax`
  e^z / ‖e^z‖₂             `l2_softmax`
  e^z / (e^s + Σ e^z)      `sink`
  σ(z + b − ln n)          `sigmoid`

Your own fix is a function of the same form; `check` tests it before training. A
`vvlen.models.retriever.Retriever` takes such a function as its field `weights`. Changes
that are not functions of the logits have fields of their own: `qk_norm`, `gated` and
`norm`. For RMSNorm after attention, x / sqrt(mean(x²) + ε) ⊙ scale (arXiv 1910.07467;
after attention: 2510.08341), the norm is `flax.linen.RMSNorm(1e-5)`.
"""
