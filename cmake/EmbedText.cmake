# cmake -DIN=page.html -DOUT=page.c -DNAME=heft__page -P EmbedText.cmake: a text file as a C array with its size; the terminating NUL is not counted.
file(READ "${IN}" hex HEX)
string(LENGTH "${hex}" digits)
math(EXPR bytes "${digits} / 2")
string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}") # 16 bytes a line
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
file(WRITE "${OUT}" "/* Made from ${NAME}'s source text by EmbedText.cmake. */
#include <stddef.h>
extern const unsigned char ${NAME}[];
extern const size_t ${NAME}_bytes;
const unsigned char ${NAME}[] = {
${hex}0 };
const size_t ${NAME}_bytes = ${bytes};
")
