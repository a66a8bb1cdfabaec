from ponor_metadata.touched_rows_python import Change as Change
from ponor_metadata.touched_rows_python import TouchedRows as TouchedRows
