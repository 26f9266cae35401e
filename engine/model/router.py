"""Which experts a row goes to, and with what weight. Always in f32, whatever the other weights."""

from diskmoe.engine.kernels.matmul import Product, add_products
from diskmoe.engine.kernels.program import Rows, address_of_array
from diskmoe.engine.kernels.route import RouteRule, add_route
from diskmoe.engine.model.config import ModelConfig
from diskmoe.engine.model.phases import RowBuilder
from diskmoe.engine.model.roles import RouterWeights


def route_rule(config: ModelConfig) -> RouteRule:
    return RouteRule(
        config.score,
        config.groups,
        config.top_groups,
        config.group_score,
        config.top_k,
        config.renorm,
        config.routed_scale,
    )


def add_choice(
    builder: RowBuilder,
    x: Rows,  # (n, hidden), normed
    weights: RouterWeights,
    config: ModelConfig,
    ids: int,  # address of i32 (n, top_k), best choice first
    shares: int,  # address of f32 (n, top_k)
) -> None:
    """Phases: the experts of each row, and the shares that their results get."""
    logits = builder.rows("router.logits", config.experts)
    kind = weights.matrix.kind
    inputs = builder.prepared("router.x", x, config.hidden, [kind])
    bias = 0 if weights.bias is None else address_of_array(weights.bias)
    add_products(builder, [Product(weights.matrix, inputs[kind], logits, bias)], builder.n)
    correction = address_of_array(weights.correction_bias)
    add_route(
        builder, builder.n, config.experts, route_rule(config), logits, correction, ids, shares
    )
