"""Streets that the project renders itself, in the layout and colours of Virtual KITTI 2: a stand-in, not that set.

A world (`scenes`) is flat panels in space (`panels`) beside a road (`road`). A frame is drawn in two steps: what each
sample of the image shows, its colour, surface and distance (`raster`, once per camera), then how that looks in a
condition (`weather`, once per condition). `writing` makes the files. Nothing here needs more than numpy and Pillow.
"""
