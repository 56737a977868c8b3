"""What changed between two source trees or packages, in the terms of those who use the package.

``record`` says what a package offers, and goes into its lock file; ``snapshot`` reads that back; ``compare`` holds two
snapshots against each other and gives ``Change`` after ``Change``; ``report`` writes them as text, JSON or Markdown.
"""
