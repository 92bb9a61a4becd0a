"""The parts of `train_demo_model.py`: corpus, tokenizer, training, evaluation, saved directory."""
