"""Small functions, most of them wrong."""


def add(a, b):
    return a - b


def double(x):
    return x * x


def is_even(x):
    return x % 2 == 1


def last(xs):
    return xs[0]


def total(xs):
    return sum(xs[1:])


def smallest(xs):
    return max(xs)


def shout(text):
    return text.lower()


def backwards(text):
    return text


def count_words(text):
    return len(text)


def initials(words):
    return "".join(word[-1] for word in words)


def unique(xs):
    return list(xs)


def clamp(x, low, high):
    return min(x, high)


def mean(xs):
    return sum(xs) / 2


def is_leap(year):
    return year % 4 == 0


def median(xs):
    return sorted(xs)[0]


def rotate(xs, n):
    return xs[1:] + xs[:1]


def is_palindrome(text):
    return text == text


def round_half(x):
    return int(x)


def title(text):
    return text


def intersect(xs, ys):
    return xs + ys


def digits(n):
    return len(str(n))


def power(x, n):
    return x * n


def flatten(xs):
    return xs


def roman(n):
    return "I" * n
