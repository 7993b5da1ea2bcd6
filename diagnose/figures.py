"""The report's figures, as plotly figures: `diagnose.figures.timeline(diagnosis).show()`.

Each takes a Diagnosis and raises `diagnose.facts.core.base.Missing` (what, how_to_record_it) where its recording
cannot give the figure.
"""

from diagnose.reports.html.job_figures import job_heat, job_path
from diagnose.reports.html.run_figures import communication, memory, ranks
from diagnose.reports.html.step_figures import idle_lines, savings, step_bar
from diagnose.reports.html.timeline_figure import timeline
from diagnose.reports.html.work_figures import copies, kernel_tree, launches, roofline

__all__ = [
    "communication",
    "copies",
    "idle_lines",
    "job_heat",
    "job_path",
    "kernel_tree",
    "launches",
    "memory",
    "ranks",
    "roofline",
    "savings",
    "step_bar",
    "timeline",
]
