"""Reports: what was measured, for people: a page, a section of a model card, or JSON."""

from fairbits.reports.content import Report as Report
from fairbits.reports.sources import Method as Method
from fairbits.reports.sources import Sources as Sources
