"""GPT-2 from generated layers: model, data, checkpoints, training and sampling."""
