"""Judgement: samples in, verdict out. Pure; methods and their sources are named where they are used."""
