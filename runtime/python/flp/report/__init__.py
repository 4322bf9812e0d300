"""Records of the benchmarks and of the tuner as one HTML page: python -m flp.report FILE... --out report.html.

records.py reads files, rows.py says what a benchmark row is and which rows may be compared, page.py writes the page.
Charts stand in files of their own, over drawing.py, which alone knows matplotlib. Nothing here needs torch or a GPU.
"""
