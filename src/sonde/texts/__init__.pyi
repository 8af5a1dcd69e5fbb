from sonde.texts.pairs import find_pair_signs as find_pair_signs
from sonde.texts.pairs import pair_profile_of as pair_profile_of
from sonde.texts.profile import profile_of as profile_of
from sonde.texts.signs import find_signs as find_signs
from sonde.texts.signs import find_signs_of_all as find_signs_of_all
