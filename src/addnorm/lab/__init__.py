"""The lab: take the block apart and measure what Add & Norm is for."""
