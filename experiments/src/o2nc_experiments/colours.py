"""Colours that people with any kind of colour vision can tell apart (Okabe and Ito)."""

BLUE, VERMILION, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"
PINK, ORANGE, SKY, BLACK = "#CC79A7", "#E69F00", "#56B4E9", "#000000"
