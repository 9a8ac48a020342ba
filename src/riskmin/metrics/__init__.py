"""Metrics that scikit-learn lacks: break-even point, precision and recall at k, rankings of queries, chunks.

Rows with equal scores are not ordered: the metrics of this package are the mean over all orders of tied rows.
Higher is better and 1 is the best, except for `tree_distance`.
"""

from riskmin.metrics.binary import prbep_score as prbep_score
from riskmin.metrics.binary import precision_at_k_score as precision_at_k_score
from riskmin.metrics.binary import recall_at_k_score as recall_at_k_score
from riskmin.metrics.chunks import ChunkCount as ChunkCount
from riskmin.metrics.chunks import chunk_confusion as chunk_confusion
from riskmin.metrics.chunks import chunk_counts as chunk_counts
from riskmin.metrics.chunks import chunk_f1 as chunk_f1
from riskmin.metrics.hierarchy import tree_distance as tree_distance
from riskmin.metrics.ranking import expected_rank_utility_score as expected_rank_utility_score
from riskmin.metrics.ranking import mean_ndcg_score as mean_ndcg_score
from riskmin.metrics.ranking import mrr_score as mrr_score
from riskmin.metrics.ranking import ndcg_per_query as ndcg_per_query
