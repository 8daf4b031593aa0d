import unittest

from calc import add


class Adding(unittest.TestCase):
    def test_two_and_three_make_five(self):
        self.assertEqual(add(2, 3), 5)
