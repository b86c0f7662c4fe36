"""CIFAR-10: 50 000 images to train on and 10 000 to test on, 32 × 32 pixels, ten classes (Krizhevsky 2009).

* `data` reads the official files, checks them, and gets them if asked to.
* `augment` shuffles, crops and flips them, all as a pure function of the seed and a counter on the device.
"""
