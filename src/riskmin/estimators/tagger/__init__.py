"""The tagger: features of tokens, label constraints, decoding."""
