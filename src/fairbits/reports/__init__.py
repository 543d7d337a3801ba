"""Reports for readers: an HTML page, a section of a model card, or JSON."""

from fairbits.reports.content import Report as Report
from fairbits.reports.sources import Method as Method
from fairbits.reports.sources import Sources as Sources
