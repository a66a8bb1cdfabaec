"""`verify`: whether a topic's objects hold what they should, and what consumers see."""
