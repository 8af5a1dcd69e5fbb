from sonde.texts.pairs import pair_profile_of as pair_profile_of
from sonde.texts.pairs import read_pair as read_pair
from sonde.texts.profile import profile_of as profile_of
from sonde.texts.signs import read_text as read_text
from sonde.texts.signs import read_texts as read_texts
