"""What an encoder is made of: frozen data, one resolved `BlockConfig` per block.

The tree mirrors the names of the sites: `config.blocks[3].attention.norm_out` describes the module whose
output is the site `blocks.3.attention.norm_out`.
"""

from addnorm.config.around import (
    Draw,
    EmbeddingsConfig,
    HeadConfig,
    InitConfig,
    Matrix,
    MatrixInit,
    TableConfig,
    Task,
    WiringConfig,
)
from addnorm.config.attention import (
    AttentionConfig,
    DisentangledConfig,
    PositionBiasConfig,
    RelativeConfig,
    RotaryConfig,
    ShapingConfig,
)
from addnorm.config.block import BlockConfig, BottleneckConfig, ConvolutionConfig, FeedForwardConfig
from addnorm.config.encoder import PRESETS, EncoderConfig, Part
from addnorm.config.unit import Activation, Learned, NormConfig, NormKind, UnitConfig

__all__ = [
    "PRESETS",
    "Activation",
    "AttentionConfig",
    "BlockConfig",
    "BottleneckConfig",
    "ConvolutionConfig",
    "DisentangledConfig",
    "Draw",
    "EmbeddingsConfig",
    "EncoderConfig",
    "FeedForwardConfig",
    "HeadConfig",
    "InitConfig",
    "Learned",
    "Matrix",
    "MatrixInit",
    "NormConfig",
    "NormKind",
    "Part",
    "PositionBiasConfig",
    "RelativeConfig",
    "RotaryConfig",
    "ShapingConfig",
    "TableConfig",
    "Task",
    "UnitConfig",
    "WiringConfig",
]
