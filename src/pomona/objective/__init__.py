"""Losses and gradients of model rows on a client's samples: the only place that accesses private
data.
"""
