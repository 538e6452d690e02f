"""Whether larger or smaller values of a metric are better, by its name."""

import re

# Short names count as whole words only: `layer2_mae` is not R², `indices` is not Dice.
# `io_u` is Keras' name for MeanIoU. Smaller is tested first: for `dice_loss` and `brier_score`.
_SMALLER_IS_BETTER = re.compile(
    r"loss|error|entropy|perplexity|divergence|distance|residual|regret|violation|false_"
    r"|negative_log|deviance|hinge|log_?cosh"
    r"|(?<![a-z0-9])(err|mae|mse|rmse|msle|rmsle|mape|smape|wape|mase|nll|ppl|bpc|bpb|bpd|kl|kld"
    r"|wer|cer|ter|eer|fid|kid|lpips|ece|brier|poisson|cost|fpr|fnr)(?![a-z])"
)
_LARGER_IS_BETTER = re.compile(
    r"accuracy|precision|recall|auc|auroc|bleu|rouge|meteor|score|similarity|sensitivity"
    r"|specificity|likelihood|correlation|pearson|spearman|explained_variance|reward|jaccard|true_"
    r"|(?<![a-z0-9])(acc|f1|f2|fbeta|f_beta|r2|iou|miou|io_u|dice|psnr|ssim|ap|map|ndcg|mrr|mcc"
    r"|kappa|chrf|elbo|hit|hits|hit_rate|top|tpr|tnr)(?![a-z])"
)


def larger_is_better(metric: str) -> bool | None:
    """Return whether larger values of a metric are better, by its name; None if unknown.

    >>> [larger_is_better(name) for name in ("val_accuracy", "val_mae", "val_wandering")]
    [True, False, None]
    """
    name = metric.lower()
    if _SMALLER_IS_BETTER.search(name):
        return False
    return True if _LARGER_IS_BETTER.search(name) else None
