"""A recording as a page to look at: the view's data in a format of its own, and the front end around it."""

from regard.viewer.asked import Answered
from regard.viewer.data import ViewData, build_view
from regard.viewer.page import render_page, write_page
from regard.viewer.summary import HeadSummary

__all__ = ["Answered", "HeadSummary", "ViewData", "build_view", "render_page", "write_page"]
