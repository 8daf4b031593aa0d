"""A searchable index of each repository: its files cut into passages, found by words and by meaning.

`sync.py` brings `knowledge.db` up to date with the files, `query.py` answers from it; `index.py` is the file format.
Nothing here prints or reads the environment. numpy, the tokenizer and the grammars are imported only by the modules
that use them, so that other commands start quickly.
"""
