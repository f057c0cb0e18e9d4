"""Every number that decides between noise and fault, with its meaning, its reason and its source.

`docs/tolerances.md` is made from this file.
"""

from __future__ import annotations

SINGLE = 2.0**-24
"""Unit roundoff of single precision, in which 16-bit kernels accumulate too."""

# --- The error model -------------------------------------------------------------------------------------------------

USUAL_GAIN = 4.0
"""Relative amplification by one operator up to which a difference counts as explained where the inputs are too far
apart for any bound (noise passes a matmul with a gain near 1)."""

NOISE_MARGIN = 4.0
"""Tolerance of an output as a multiple of the bound on the roundings at its site. A calibrated floor needs 2
(16-bit) to 5 (fp32), measured on a 12-layer transformer."""

UNBOUNDED = 1.0
"""Tolerance, relative to a tensor's norm, from which on it decides nothing: a tensor of zeros would be within it."""

COMPILED_BOUND = 0.05
"""Noise floor of a result of compiled code from which on it says nothing of the operators inside, relative to its norm.
Of an unknown operator it is 8e-6 in single precision, 0.06 in fp16 and 0.5 in bfloat16; a missing activation is 0.4
off, a wrong axis of a mean 0.01."""

DRAWN_ROUNDINGS = 3.0
"""Roundings in single precision, `NOISE_MARGIN` times, of a number drawn by `sqrt(-2 log u) cos(2 pi v)`. Vector
libraries give each function within 3.5 units in the last place (SLEEF, "u35" functions); together 12 unit
roundoffs."""

NUMBER_GAIN = 4.0
"""Factor by which an operator may enlarge the distance of a number among its arguments, such as an exponent."""

INHERITED_MARGIN = 2.0
"""Tolerance as a multiple of the bound that the inputs give. The largest ratio seen among some 20 000 moved tensors
of sound pairs, with sketched distances, was 1.33."""

SETTING_MARGIN = 0.05
"""Noise margin where a setting differs while all inputs are bitwise equal: hardly anything else can then move the
output."""

SETTING_TRUST = 16.0
"""Divides the inherited part where a setting differs: typical amplification then decides, not the worst."""

NOISE_MARGIN_WITH_SETTING = 0.5
"""Noise margin where both a setting and the inputs differ."""

FLIP_DEVIATIONS = 4.0
"""Standard deviations of the number of flipped roundings, a Poisson variable."""

FLIP_SIZE = 4.0
"""Size of a flipped rounding in unit roundoffs: one unit in the last place is 2, and few elements may be twice the
root mean square."""

SKETCHED_ALIKE = 1.2
"""Factor for a distance estimated from sketches, off by more than 20 % once in 1e5 (`lockstep.core.sketch`)."""

DEFAULT_CONDITION = 32.0
"""Relative condition number of an unknown operator, and its roundings in unit roundoffs. On 108 sound pairs of eight
small networks the largest condition was 13, at a batch norm, and the most roundings 8, at a GRU."""

NORMALISATION_ROUNDINGS = 16.0
"""Roundings of mean, variance, reciprocal root and scaling, with a mean up to some deviations off zero."""

LINEAR_REGIME = 0.05
"""Relative input difference up to which a first-order condition number says anything."""

NO_ROUNDING = 10.0
"""Rounding moves no gradient by more than this many square roots of the unit roundoff, times the norm of all gradients
of the step. Chosen: bfloat16 gradients of GPT-2 differ by up to half a square root between kernels."""

UPDATE_ROUNDINGS = 16.0
"""Roundings of one optimizer update: about ten operations per element in `torch.optim`'s Adam."""

OTHER_DIRECTION = 0.95
"""How far two updates of one parameter may be apart where the gradients agree, in units of the longer one; where they
are further apart, in units of `sqrt(a^2 + b^2)`, their sizes being `a` and `b`. Adam's first update turns noise into a
full step, whose sign each run draws: two such steps are at right angles. Where keys and values of attention share a
bias, half of it is noise, and the updates are as far apart as either is long. A lost update is that far apart too, and
there `b` is 0."""

SATURATED_EXPONENT = 16.0
"""Largest exponent that still passes its error on: beyond, softmax and its kin are flat."""

UNKNOWN_GAIN = 4.0
"""Gain of a relative error by an unknown operator."""

FACTOR_ELEMENTS = 4096
"""Elements from which on a factor is told from noise by the direction of the difference. Chosen: in sound trainings
the differences had some hundred dimensions at least."""

ALONG_THE_RESULT = 0.5
"""Share of a difference that must lie along the result for it to be a factor. Seen in sound trainings: 0.45 at
most."""

# --- The ends of trainings -------------------------------------------------------------------------------------------

PARTED_STEPS = 8
"""Steps from the first loss that differs within which a loss must be `sqrt(unit roundoff)` off for more than
rounding to have parted two equal runs: a rounding of 6e-8 would have to grow 4096 times in eight steps."""

END_ROUNDINGS = 8.0
"""Roundings of a state that follows trained parameters, such as a mean of weights, if these are equal bit by bit
until the end."""

FOLLOWING_NOISE = 4.0
"""If the recorded steps differ by noise, other state of the process may be off by this multiple of the largest
distance of a trained parameter."""

LEAST_SHARE = 1e-3
"""Share of the way a state has gone in the recorded steps that it may be off by its roundings. Less than that is no
wrong decay, of which no one would choose two that are nearer to each other; the laws tell a factor of 1.001."""

# --- Calibration -----------------------------------------------------------------------------------------------------

REPEATED_MARGIN = 2.0
"""Times the distance of two runs of the reference that a candidate may be off it where order alone moves a result of
`REPEATED_ELEMENTS` or more. Sums of that many squares are within a third of their mean, four standard deviations of
`sqrt(2 / n)` with `n = 128` apart, and a sketch within 20 %."""

REPEATED_ELEMENTS = 128
"""Fewer elements may by chance be further apart in one pair of runs than in another: then `CALIBRATION_MARGIN`."""

CALIBRATION_MARGIN = 5.0
"""Times the calibrated noise that fp32 and wider tensors may be off. Measured on a 12-layer transformer, the error
was 0.9 to 4.4 times that of one run with every rounding drawn anew."""

CALIBRATION_MARGIN_16_BIT = 2.0
"""Times the calibrated noise that 16-bit tensors may be off; measured as above, 0.74 to 0.90 times."""

CALIBRATION_MARGINS_OF_FEW = (637.0, 31.7, 11.9, 7.4, 5.5, 4.5, 3.9)
"""Times the calibrated noise that tensors of 1 to 7 elements may be off, where the margins above are less: few elements
may by chance hardly move in a run. The ratio of two lengths of so many normally distributed numbers is beyond it once
in 1 000 times (`sqrt` of the 0.999 quantile of the F distribution with as many degrees of freedom on both sides)."""

CALIBRATION_FLOOR_SHARE = 0.25
"""Share of the noise floor for equal inputs that stays allowed, for roundings inside an operator, where none is
injected (a long sum). Convolutions, whose kernels may lose a digit, keep all of it."""

ILL_CONDITIONED = 30.0
"""Relative amplification from which on a site counts as ill-conditioned (as `DEFAULT_CONDITION`)."""

# --- The fixed rule --------------------------------------------------------------------------------------------------

FIXED_COSINE = 0.9
"""By the fixed rule, a tensor below this cosine differs, whatever its error (ptdbg_ascend, "Accuracy Reached or
Not")."""

FIXED_COSINE_WITH_ERROR = 0.99
"""A tensor below this cosine differs if its error is above `FIXED_MAX_ABS_WITH_COSINE` (as above)."""

FIXED_MAX_ABS = 1.0
"""A tensor with a larger maximum absolute error differs, whatever its cosine (as above)."""

FIXED_MAX_ABS_WITH_COSINE = 0.001
"""A tensor with a larger maximum absolute error differs if its cosine is below `FIXED_COSINE_WITH_ERROR` (as above)."""

# --- Operators run again alone ---------------------------------------------------------------------------------------

KERNEL_ROUNDINGS = 16.0
"""Unit roundoffs of the result's norm that a sound fp32 kernel may always be off: fast exponentials and reciprocals
are good to a few units in the last place."""

ACTIVATION_ROUNDINGS = 4.0
"""Unit roundoffs of one, the range of tanh and sigmoid, that a sound fp32 kernel's activation is off inside a
recurrent layer, as a root mean square. By the CUDA C++ Programming Guide's maximum errors, exponential and fast
division are off by up to 2 units in the last place each, so `tanh(x) = 2 sigmoid(2 x) - 1` by 7 roundoffs: `7 /
sqrt(3) = 4` where errors are spread evenly. Steps and layers carry them on as the square root of their number at
most (Higham and Mary, SIAM J. Sci. Comput. 41, 2019)."""

SMALLEST_STATE = 2.0**-5
"""Root mean square of a recurrent layer's states below which the relative tolerance of its activations does not
grow. Chosen: states of layers as torch sets them up are of 0.04 to 0.5."""

QUIET_ROUNDINGS = 4.0
"""Unit roundoffs of the result's norm that need no second look."""

QUIET_UPDATE_ROUNDINGS = 4.0
"""Unit roundoffs of the parameter that an update may always leave: one for weight decay, one for the step, each once
more in a fused kernel."""

OTHER_EPSILON = 100.0
"""How many times epsilon moves a parameter of a different framework as its place in the formula does: inside of Adam's
second correction it counts 32 times at the first step."""

SAME_STATE = 1e-4
"""How far two frameworks may be apart in an average that both keep, relative to it, where they mean the same by it."""

SENTINEL_MAGNITUDE = 2.0**20
"""Magnitude, in units of the median, from which on elements count as a population of their own: a mask's -3e38 would
hide any fault in the scores beside it."""

LOCAL_MARGIN = 8.0
"""How many times the noise of a sound kernel another sound kernel may be off, in fp32. On 6 500 outputs of six
networks (1 thread against 2, oneDNN on and off) it was at most 1.7 times the noise of a re-run and one roundoff."""

LOCAL_MARGIN_16_BIT = 2.5
"""The same in 16-bit dtypes, where one rounding of the result outweighs all else (PyTorch's own arbiter between
kernels uses 2, and 3 for small tensors)."""

FEW_ELEMENTS = 3.0
"""Few elements may be lucky in one kernel: both margins grow by `1 + 3 / sqrt(n)`, n the number of elements that
carry the error."""

KERNEL_TRUST = 64.0
"""If a re-run in the recorded dtype is further off than this multiple of the inputs' roundoff, and the other run is
not, this machine's own kernel is wrong."""

HEALTHY_MISROUNDED = 0.02
"""Share of 16-bit results that a sound kernel may misround; measured at most 0.12 %, faults from 3.4 %."""

MISROUNDED_MARGIN = 8.0
"""How many times the other run's share, or that of a re-run here, the share may be."""

FEW_MISROUNDED = 8.0
"""Elements that may be misrounded besides, for small tensors."""

BIAS_DEVIATIONS = 6.0
"""Standard deviations that the mean error of a 16-bit result may be off zero. By Hoeffding's inequality (JASA 58,
1963) errors of either sign by chance exceed it once in 3e7."""

FEW_CARRIERS = 64.0
"""Elements that carry an error up to which one draw of noise may happen to be small."""

ROUNDING_LEAVES = 0.2
"""Share of the error that a rounding must not leave unexplained: another rounding of the same size leaves `sqrt(2)`
of it, the next finer format half."""

TEN_BITS_ALIKE = 1.25
"""fp16 and TF32 keep the same ten bits; one must leave this many times the other's error for the two to be told
apart."""

UPDATE_MARGIN = 4.0
"""How many times the error of one kernel (single, foreach, fused) another may be off."""

NUMBERS_ALIKE = 64 * 2.0**-23
"""Relative distance up to which two numbers of Python may be one, rounded otherwise."""

MASK_MAGNITUDE = 1e4
"""Magnitude from which on two results of one sign both mean `left out`: masks are -inf, -3.4e38, -1e9 or -1e4."""

OTHER_MASK = 2.0**-10
"""Relative change of a mask's values, which no defined result feels."""

MOST_UNDEFINED = 0.5
"""Share of results that may not be defined (rows that are masked as a whole) for the others to tell."""

DROPOUT_ROUNDINGS = 4.0
"""Unit roundoffs that a kept element of dropout may be off `x / (1 - p)`: one for the quotient, one for a rounded
reciprocal, twice."""

DROPOUT_DEVIATIONS = 6.0
"""Standard deviations that the share of dropped elements may be off p."""

AMPLIFIED = 100.0
"""Condition number from which on a difference counts as amplified rather than handed on."""

ROUNDS_MORE_OFTEN = 64.0
"""A 16-bit reference that is off by up to this many times its tolerance rounds more often; further off it is
wrong."""

ULP_LIMITS = (1.0, 32.0)
"""Units in the last place that the shares in the words are counted beyond (Ascend's standard for fp32 operators takes
32)."""

FOLLOWS_SETTING = 2.0
"""A result must be this many times nearer to the result of its own settings than to that of the other's."""

# --- Uniform changes -------------------------------------------------------------------------------------------------

LEAST_MEMBERS = 2
"""Modules, or sites, that a class of changes needs: one alone is a single difference."""

CLASS_COVERED = 0.8
"""Share of a family's sites that must show a change for it to be one of all of them: a tensor of few elements may
not show it."""

CLASS_ALIKE = 4.0
"""How many times the largest or median excess of a class a site of the same family may be off and still belong to
it: rounding errors of matmuls of different lengths are near each other."""

CLASS_FUSED_ALIKE = 8.0
"""The same for operators with matmuls inside, in relative differences: an LSTM chains some of them."""

OPERAND_FORMATS = (("fp16 or TF32", 2.0**-11), ("HF32", 2.0**-12), ("bf16", 2.0**-8))
"""Formats that matmul units round operands to, and their unit roundoff."""

OPERAND_ROUNDING = 0.59
"""Relative error of a sum of products whose factors are both rounded, in units of roundoff: one rounding has a root
mean square of `sqrt((1 - 1/4) / (6 ln 2)) = 0.42`, two factors `sqrt(2)` of it."""

CLASS_NEAR = 2.5
"""How many times more or less than expected a matmul of a class may add. In two emulated networks it was 0.5 to 1.1
at 20 of 21 sites."""

CLASS_ELEMENTS = 32
"""Elements that an output needs for its relative distance to be near the expected one."""

STRAY_ROUNDINGS = 32.0
"""Roundings that a single element may be off where nearly all others are equal. Chosen: kernels that round otherwise
are off by one or two, and at many elements."""

STRAY_SCALE = 0.25
"""Part of a typical element, the root mean square, that counts as the size of those below it. Chosen: a difference
that cancels has roundings of eight of a typical element."""

STRAY_ELEMENTS = 1e-3
"""Share of elements that may differ at all where single ones are looked at. Chosen: sound 16-bit kernels rounded 0.1
% of their results otherwise at most."""

# --- Origins and their causes ----------------------------------------------------------------------------------------

TRAINED_ALIKE = 0.01
"""Relative distance that unrecorded steps may leave between two sound runs, over all parameters. Chosen: sound pairs
of a small BERT were 3e-7 apart after twenty steps of AdamW."""

DEEP_MODEL = 100.0
"""Tolerance of a result that a model of many layers made outside of a step, in tolerances of one operator."""

SECOND_ORIGIN = 4.0
"""After an origin, a tensor counts as a second origin if it is beyond its tolerance by this factor."""

SAME_TENSOR = 0.01
"""Relative distance up to which two aligned tensors are the same (as `lockstep.align.likeness` takes it)."""

UPDATE_SIZE_LIMITS = ((1e-4, 1.01), (1e-2, 1.05))
"""Relative gradient difference up to which a parameter counts, and how far apart the pooled update sizes may then
be. Largest ratios on 230 sound updates: 1.0002 and 1.016."""

NOT_ZEROED_SHARE = 0.9
"""Share of the gradients that must hold the step before's for all to count as not zeroed."""

STRAIGHT = 0.999
"""Cosine above which a gradient differs by its length alone."""

SAME_ELEMENTS_KEPT = 0.99
"""Cosine above which two dropout results kept the same elements: dropping other ones with p = 0.01 leaves 0.99."""

FACTORS_ALIKE = 1e-2
"""How far apart the factors of single gradients may be that share one, and how far a factor is from 1 at least.
bf16's own rounding stays below 4e-3."""

FACTOR_SHARE = 0.9
"""Share of the parameters that must have the factor: true zeros (an attention's key bias) hold nothing but noise."""

QUIET_GRADIENT = 1e-6
"""Share of the largest norm below which a gradient is not asked."""

LEFT_OVER = 0.05
"""Relative distance up to which a gradient, less this step's part, equals the previous step's."""

# --- Explanations ----------------------------------------------------------------------------------------------------

EXPLAINED_MARGIN = 3.0
"""Times the noise seen at a result that an explanation may leave. Noise of two orders of one sum differs by less
than 2 (`LOCAL_MARGIN`)."""

RECORDED_ROUNDINGS = 4.0
"""Unit roundoffs, times the norm, that an explanation may leave if the right result is the reference's recorded one:
both runs round once, and a factor rounds again."""

CLEAR_OF_FLOOR = 3.0
"""An error must be this multiple of the allowed remainder for an explanation: it then explains 89 % at least."""

CHANCE_DIGITS = 4.0
"""Decimal digits that a right prediction has to foretell in all: effective elements of the error, less the fitted
numbers, times the digits by which the error exceeds the allowed remainder. A random hypothesis foretells so much
once in ten thousand."""

FEWEST_FITTED = 8
"""Elements below which nothing that was fitted is an explanation."""

NEAR_FLOOR = 64.0
"""Multiple of its floor up to which the remainder of an explanation may be noise, which a re-run in the recorded
dtypes tells."""

ACCUMULATED_SHARE = 0.75
"""Share of the elements that a sum rounded at each step has to foretell; noise takes the others to a neighbour at
some step."""

ALONE_DIGITS = 1.5
"""Times as many digits where the other results of the call are right though the prediction says otherwise."""

ALIKE = 2.0
"""An explanation whose remainder is within this multiple of the best one's counts as the same on these inputs; both
are printed."""

FAITHFUL_SHARE = 0.1
"""Share of an error that the reference may be off its own re-run where that stands for the right result."""

FAITHFUL_ROUNDINGS = 64.0
"""Unit roundoffs, times the norm, that it may be off besides where the result is a further one of the same call."""

SENTINEL_SIZE = 1e30
"""Magnitude from which on an element stands for minus infinity, in a mask, and is no result."""
