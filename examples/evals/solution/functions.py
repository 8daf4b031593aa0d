"""Small functions."""


def add(a, b):
    return a + b


def double(x):
    return x * 2


def is_even(x):
    return x % 2 == 0


def last(xs):
    return xs[-1]


def total(xs):
    return sum(xs)


def smallest(xs):
    return min(xs)


def shout(text):
    return text.upper()


def backwards(text):
    return text[::-1]


def count_words(text):
    return len(text.split())


def initials(words):
    return "".join(word[:1] for word in words)


def unique(xs):
    return list(dict.fromkeys(xs))


def clamp(x, low, high):
    return max(low, min(x, high))


def mean(xs):
    return sum(xs) / len(xs) if xs else 0


def is_leap(year):
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def median(xs):
    return (sorted(xs)[(len(xs) - 1) // 2] + sorted(xs)[len(xs) // 2]) / 2


def rotate(xs, n):
    return xs[n % len(xs) :] + xs[: n % len(xs)]


def is_palindrome(text):
    return [c for c in text.lower() if c.isalnum()] == [c for c in text.lower() if c.isalnum()][::-1]


def round_half(x):
    return int(x + 0.5) if x >= 0 else -int(0.5 - x)


def title(text):
    return " ".join(word[:1].upper() + word[1:] for word in text.split(" "))


def intersect(xs, ys):
    return [x for x in xs if x in ys]


def digits(n):
    return len(str(abs(n)))


def power(x, n):
    return x**n


def flatten(xs):
    return [y for x in xs for y in (flatten(x) if isinstance(x, list) else [x])]


def roman(n):
    text = ""
    for value, letters in ((10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")):
        text, n = text + letters * (n // value), n % value
    return text
